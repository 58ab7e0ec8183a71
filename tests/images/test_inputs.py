"""Images and features in the forms that people hold them in."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from helpers.pictures import RED, encoded, flat, turned
from helpers.streams import space
from helpers.tiny_models import ColourEncoder, pictures
from unseen import Session, read_images
from unseen.errors import FeatureError, ImageError, SettingError
from unseen.images.inputs import as_images


def forms(folder: Path) -> dict[str, Any]:
    picture = flat()
    picture.save(folder / "a.png")
    pixels = np.asarray(picture)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    return {
        "path": folder / "a.png",
        "text": str(folder / "a.png"),
        "bytes": encoded(picture),
        "open file": io.BytesIO(encoded(picture)),
        "pillow": picture,
        "numpy": pixels,
        "float": pixels / 255,
        "torch": tensor,
        "half": (tensor / 255).half(),
        "row": {"image": picture, "label": 3},
        "hugging face": {"image": {"bytes": encoded(picture), "path": None}},
        "batch": pixels[None],
        "loader": [tensor[None].float() / 255, torch.tensor([1])],
        "columns": {"pixel_values": tensor[None], "label": torch.tensor([1])},
        "list": [picture],
        "mixed": [folder / "a.png", pixels][:1],
    }


def test_every_form_of_an_image_gives_the_same_pixels(tmp_path: Path) -> None:
    for form, value in forms(tmp_path).items():
        (image,) = as_images(value)
        difference = np.asarray(image.pixels).astype(int) - np.asarray(flat())
        assert image.pixels.mode == "RGB", form
        assert np.abs(difference).max() == 0, form


def test_read_images_takes_images_beside_paths(tmp_path: Path) -> None:
    held = forms(tmp_path)
    (batch,) = read_images([held["path"], held["bytes"], held["numpy"], b"broken"])
    assert [image.path for image in batch] == [str(tmp_path / "a.png"), "#1", "#2"]
    assert {image.pixels.getpixel((0, 0)) for image in batch} == {RED}
    assert [one.path for one in batch.skipped] == ["#3"]


def test_read_images_asks_an_iterator_for_no_more_than_it_decodes_ahead() -> None:
    asked = []

    def endless() -> Any:
        while True:
            asked.append(1)
            yield flat()

    assert len(next(read_images(endless(), size=2))) == 2
    assert len(asked) < 60


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "expected a path, bytes .* got int"),
        ([object()], "image 0: expected a path, bytes .* got object"),
        (torch.zeros(3, 4, 6) - 1, "float pixels from 0 to 1, got -1 to -1; .*undo the standardisation"),
        (torch.full((3, 4, 6), float("nan")), "float pixels from 0 to 1, got nan"),
        (torch.zeros(4, 6, 3), r"permute\(2, 0, 1\)"),
        (np.zeros((3, 4, 6)), r"transpose\(1, 2, 0\)"),
        (np.zeros((4, 6, 3), np.int64), "uint8 or float, got int64"),
        ({"label": 3}, r"expected a row .* got \['label'\]"),
        ([b"\x00"], "image 0: not an image"),
        (io.StringIO("text"), r"image 0: expected a file opened for bytes, .*open\(path, 'rb'\)"),
        (["nowhere.png"], r"image 0 \(nowhere.png\): cannot be opened"),
        ("/", r"image 0 \(/\): a folder, not an image; read_images\(folder\)"),
    ],
)
def test_anything_else_is_a_typed_error_with_what_would_work(value: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        as_images(value)


def test_a_picture_that_is_passed_stays_as_it_is() -> None:
    opened = as_images(encoded(flat(size=(8, 4)), "JPEG", exif=turned(6)))[0].pixels
    assert opened.size == (4, 8)
    grey = Pillow.new("L", (8, 4))
    assert as_images(grey)[0].pixels.mode == "RGB"
    assert grey.mode == "L"


def test_a_session_takes_features_as_arrays_and_lists() -> None:
    labels = space()
    z = torch.nn.functional.normalize(torch.randn(5, labels.dim, generator=torch.Generator().manual_seed(0)), dim=-1)
    expected = Session(labels).observe(z).margin
    for form in (z.numpy(), z.double().numpy(), list(z), z.tolist()):
        assert torch.equal(Session(labels).observe(form).margin, expected)
        assert torch.allclose(Session(labels).score(form).margin, Session(labels).score(z).margin)


def test_a_session_with_an_encoder_takes_images_and_keeps_their_names(tmp_path: Path) -> None:
    encoder = ColourEncoder()
    labels = space(dim=3)
    pictures(1)[0].pixels.save(tmp_path / "a.png")
    session = Session(labels, encoder=encoder)
    verdicts = session.observe([tmp_path / "a.png"])
    assert torch.equal(verdicts.margin, Session(labels).observe(encoder.images(pictures(1))).margin)
    assert session.reservoir.images.keys == (str(tmp_path / "a.png"),)
    session.save(tmp_path / "state")
    again = Session.load(tmp_path / "state", labels, encoder=encoder)
    assert len(again.score(flat())) == 1


@pytest.mark.parametrize("grey", [np.full((5, 3), 200, np.uint8), torch.full((5, 3), 200, dtype=torch.uint8)])
def test_a_grey_picture_of_two_dimensions_is_an_image_and_no_features(grey: Any) -> None:
    session = Session(space(dim=3), encoder=ColourEncoder())
    expected = session.score(flat((200, 200, 200), (3, 5))).margin
    for form in (grey, [grey]):
        assert torch.equal(session.score(form).margin, expected)
    (batch,) = read_images(grey)
    assert batch.images[0].pixels.size == (3, 5)


def test_a_session_without_an_encoder_or_a_label_space_says_what_it_needs() -> None:
    with pytest.raises(FeatureError, match=r"got a list of Image; .*Session\(space, encoder=encoder\)"):
        Session(space()).observe([flat()])
    with pytest.raises(SettingError, match=r"expected a LabelSpace or a detector, got list; pass LabelSpace.build"):
        Session(["cat", "dog"])  # type: ignore[arg-type]
