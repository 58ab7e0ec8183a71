"""Batches that are read ahead: the vectors of a plain loop, in order, with what was skipped in its place."""

import threading
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

from helpers.pictures import encoded, turned
from helpers.tiny_models import TinyOffline, pictures, save_clip
from unseen.encoders import load_encoder
from unseen.encoders.preprocess import CLIP
from unseen.features import FeatureCache, stream_images
from unseen.features.encoding import NUMBERS, make_reader
from unseen.images import Entry, find_images, read_images
from unseen.images.sources import prefetch


@pytest.fixture
def encoder(tmp_path) -> Any:
    return load_encoder(save_clip(tmp_path / "clip"), device="cpu")


@pytest.fixture
def photos(tmp_path):
    """A folder of JPEG files of several sizes and kinds, with two that cannot be read."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, image in enumerate(pictures(11, size=(50, 40))):
        picture = image.pixels.resize((50, 40 + i))
        kinds: list[dict[str, Any]] = [{}, {"progressive": True}, {"quality": 95}, {"exif": turned(6)}]
        (folder / f"{i:02d}.jpg").write_bytes(encoded(picture, "JPEG", **kinds[i % 4]))
    (folder / "03.jpg").write_bytes(b"no picture")
    cut = (folder / "08.jpg").read_bytes()
    (folder / "08.jpg").write_bytes(cut[: len(cut) // 2])
    pictures(1)[0].pixels.save(folder / "11.png")
    return folder


def in_a_loop(photos, encoder):
    """What was read and skipped, with vectors, by the plainest means."""
    return [(batch, encoder.images(batch.images)) for batch in read_images(photos, size=5)]


def test_a_stream_has_the_vectors_of_a_plain_loop_and_small_pictures(encoder, photos):
    pictures(1, size=(900, 700))[0].pixels.save(photos / "12.png")
    found = list(stream_images(find_images(photos), encoder, size=5))
    for (one, z), (batch, expected) in zip(found, in_a_loop(photos, encoder), strict=True):
        assert [(row.path, type(row)) for row in one.rows] == [(row.path, type(row)) for row in batch.rows]
        assert one.skipped == batch.skipped
        assert torch.equal(z, expected)
        assert not z.is_inference()
    assert found[0][0][0].pixels.size == (50, 40)
    assert max(found[-1][0][-1].pixels.size) == NUMBERS.kept


def test_a_large_jpeg_is_read_at_a_scale_that_leaves_three_times_the_pixels_of_the_tower(tmp_path):
    reader = make_reader(TinyOffline(device="cpu"))
    for whole, smaller in (((4000, 3000), (1000, 750)), ((1350, 1800), (675, 900)), ((1340, 1800), (1340, 1800))):
        data = encoded(Pillow.new("RGB", whole), "JPEG")
        image: Any = Entry("a.jpg", "", data=lambda data=data: data).read(reader.least)
        assert image.pixels.size == smaller


def test_vectors_of_a_photo_read_at_a_smaller_scale_hardly_move():
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(1, 3, 60, 80, generator=generator)
    whole = torch.nn.functional.interpolate(rough, size=(2400, 3200), mode="bicubic").clamp(0, 1)[0]
    data = encoded(Pillow.fromarray((whole.permute(1, 2, 0) * 255).byte().numpy()), "JPEG", quality=90)
    entry = Entry("a.jpg", "", data=lambda: data)
    full, reduced = (CLIP.cropped([entry.read(least)]) for least in (0, NUMBERS.spare * CLIP.resize))  # type: ignore[list-item]
    assert (full.int() - reduced.int()).abs().float().mean() < 2  # of 255


def test_an_error_in_a_thread_reaches_the_caller_and_ends_the_threads():
    def fail(number):
        if number == 5:
            raise ValueError("the sixth")
        return number

    results = prefetch(fail, range(100), workers=2, most=3, name="failing")
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="the sixth"):
        next(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("failing")]


def test_vectors_of_a_cache_are_not_computed_again(encoder, photos, tmp_path, monkeypatch):
    first = list(stream_images(find_images(photos), encoder, FeatureCache(tmp_path / "f", encoder), size=5))
    calls = []
    vectors = encoder.vectors
    monkeypatch.setattr(encoder, "vectors", lambda pixels: calls.append(len(pixels)) or vectors(pixels))
    pictures(1, seed=9)[0].pixels.save(photos / "02a.png")
    again = list(stream_images(find_images(photos), encoder, FeatureCache(tmp_path / "f", encoder), size=5))
    assert calls == [1]
    z = torch.cat([z for _, z in again])
    assert torch.equal(z[[0, 1, 2, *range(4, 11)]], torch.cat([z for _, z in first]))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.gpu
@gpu
def test_a_gpu_that_is_read_ahead_for_has_the_vectors_of_one_that_waits(photos):
    encoder: Any = TinyOffline(device="cuda")
    (found,) = stream_images(find_images(photos), encoder)
    (whole,) = read_images(photos)
    assert torch.equal(found[1], encoder.images(whole.images).cpu())
    many = [entry for _ in range(20) for entry in find_images(photos)]
    batches = list(stream_images(many, encoder, size=12))
    for batch, z in batches:
        assert len(batch.skipped) == 2
        assert torch.equal(z, batches[0][1])
