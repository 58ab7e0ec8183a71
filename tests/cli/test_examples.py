"""unseen detect --examples, with an encoder that knows colours only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.commands import detect, rows, run
from helpers.pictures import save_shade
from helpers.tiny_models import COLOURS, NamedColours
from unseen import LabelSpace
from unseen.errors import DataError, EncoderError, SettingError

pytestmark = pytest.mark.usefixtures("encoder")


@pytest.fixture
def known(tmp_path: Path) -> Path:
    for name in ("red", "green"):
        for i in range(4):
            save_shade(tmp_path / "known" / name / f"{i}.png", tuple(abs(part - 9 - 5 * i) for part in COLOURS[name]))
    return tmp_path / "known"


def test_names_come_from_the_folders_of_the_examples_and_stay_with_the_state(photos: Path, known: Path) -> None:
    (known / "blue").mkdir()
    (known / "red" / "9.png").write_bytes(b"not a picture")
    save_shade(known / ".thumbnails" / "a.png", (9, 9, 9))  # names no class
    options = ("--examples", "known", "--calibrate", "known", "--recall", "0.8", "--json")
    result = detect("photos", *options, "--state", "s.safetensors", code=1)
    said = " ".join(result.stderr.split())
    assert "known/red/9.png skipped: not an image of a supported format" in said
    assert "6 examples of 2 of 3 names + 2 for the threshold" in said
    assert "1 name has no examples (blue): it gains less" in said
    assert "6 of 8 calibration images are among the examples" in said
    assert {row["nearest"] for row in rows(result)[:-1] if "nearest" in row} == {"red", "green", "blue"}
    assert LabelSpace.load("s.space.safetensors").examples.label.tolist() == [1] * 3 + [2] * 3
    assert "8 of the images are among the examples" in detect("known", "--examples", "known", code=1).stderr
    detect("photos", "--state", "s.safetensors")
    with pytest.raises(SettingError, match="expected --examples for a new state"):
        detect("photos", "--examples", "known", "--state", "s.safetensors")
    with pytest.raises(SettingError, match="expected a label space without examples, got 6"):
        detect("photos", "--examples", "known", "--space", "s.space.safetensors")


def test_bad_examples_are_refused_before_anything_is_encoded(
    photos: Path, known: Path, encoder: NamedColours, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="got 'red', which is not among blue, green; rename the folder"):
        detect("photos", "--examples", "known", "--label", "blue", "--label", "green")
    (known / "stray.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"expected examples in a folder per class, got known/stray\.png beside them"):
        detect("photos", "--examples", "known")
    with pytest.raises(DataError, match="expected a folder with one folder of examples per class, got none at nowhere"):
        detect("photos", "--examples", "nowhere")
    assert encoder.calls == 0


def test_examples_under_wrong_names_are_not_used_and_the_command_says_so(photos: Path, known: Path) -> None:
    for i in range(4):  # half of each folder shows the other name
        save_shade(known / "red" / f"wrong{i}.png", (9, 200, 60 + 20 * i))
        save_shade(known / "green" / f"wrong{i}.png", (200, 9, 60 + 20 * i))
    result = detect("photos", "--examples", "known", "--state", "s.safetensors")
    assert "16 examples are not used: they agree neither with their names nor with each other" in result.stderr
    assert LabelSpace.load("s.space.safetensors").examples is None


def test_examples_as_features_need_labels_and_the_same_encoder(photos: Path, known: Path) -> None:
    z = torch.nn.functional.normalize(torch.tensor([[9.0, 1, 1], [1, 9.0, 1]]), dim=1)
    meta = {"classes": json.dumps(["red", "green"]), "fingerprint": "c010" * 16}
    save_file({"features": z, "labels": torch.tensor([0, 1])}, "f.safetensors", metadata=meta)
    assert "2 examples of 2 of 2 names" in detect("photos", "--examples", "f.safetensors").stderr
    save_file(
        {"features": z, "labels": torch.tensor([0, 1])}, "g.safetensors", metadata=meta | {"fingerprint": "other"}
    )
    with pytest.raises(EncoderError, match="expected examples of the encoder of this label space"):
        detect("photos", "--examples", "g.safetensors")
    save_file({"features": z}, "h.safetensors", metadata={})
    with pytest.raises(DataError, match="expected labelled features in h, got no labels; encode a folder per class"):
        detect("photos", "--examples", "h.safetensors")
    keys = {"keys": json.dumps(["known/red/a.png", "known/green/b.png"])}
    save_file({"features": z}, "folders.safetensors", metadata=meta | keys | {"classes": "[]"})
    assert "2 examples of 2 of 2 names" in detect("photos", "--examples", "folders.safetensors").stderr


def test_mine_writes_a_label_space_with_examples(known: Path) -> None:
    given = ["mine", "--examples", "known", "-o", "space.safetensors"]
    run(*given)
    space = LabelSpace.load("space.safetensors")
    assert (space.names, len(space.examples)) == (("green", "red"), 6)
    with pytest.raises(DataError, match="got 'green', which is not among red"):
        run(*given, "--label", "red")
