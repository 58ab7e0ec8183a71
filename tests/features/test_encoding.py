"""Batches that are read ahead and launched: the vectors of a CPU, in order, with what was skipped in its place.

On a CPU the launcher does without streams; Pillow stands in for the decoder of a GPU.
"""

import sys
import threading
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

from helpers.pictures import encoded
from helpers.stand_ins import BROKEN, decode_by_pillow, resize_by_pillow
from helpers.tiny_models import ColourEncoder, TinyOffline, pictures, save_clip
from unseen.encoders import load_encoder
from unseen.encoders.gpu.jpeg import GpuDecoder
from unseen.errors import EncoderError, SettingError
from unseen.features import FeatureCache, encode_images, encoding, load_features, stream_images
from unseen.features import cache as caching
from unseen.features.encoding import ReadPlan, check_decoder, encode_ahead, gpu_encoder, read_plan
from unseen.features.launch import BatchLauncher
from unseen.features.reading import ImageReader, Undecoded
from unseen.images import Entry, Skipped, find_images
from unseen.images.ahead import ahead
from unseen.images.plain_pool import _Worker

CPU = torch.device("cpu")
PLANS = [ReadPlan(3, 4), ReadPlan(2, 3, in_processes=True)]


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


def turned(orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    return exif


def launcher(encoder, **options):
    return BatchLauncher(ImageReader(encoder.prepare, **options), encoder.vectors, CPU)


def decoding_launcher(encoder, decode=decode_by_pillow):
    """A launcher that leaves plain files to a decoder."""
    steps = encoder.byte_steps
    reader = ImageReader(steps.cropped, leaves_plain=True)
    return BatchLauncher(reader, encoder.byte_vectors, CPU, GpuDecoder(steps, CPU, decode, resize_by_pillow(steps)))


def test_vectors_read_ahead_are_those_of_a_cpu_bit_for_bit(encoder, photos):
    expected = list(stream_images(find_images(photos), encoder, size=5))
    entries = find_images(photos)
    found = list(encode_ahead(entries, launcher(encoder, keeps_pictures=True), size=5, plan=ReadPlan(3, 1)))
    assert len(found) == len(expected) == 3
    for one, (batch, z) in zip(found, expected, strict=True):
        assert [row.path for row in one.rows] == [row.path for row in batch.rows]
        assert [row for row in one.rows if isinstance(row, Skipped)] == list(batch.skipped)
        assert [row.path for row in one.new] == [image.path for image in batch]
        assert torch.equal(one.z, z)


@pytest.mark.parametrize("plan", PLANS)
def test_files_that_a_gpu_decodes_come_in_order_with_those_that_it_does_not(encoder, photos, plan):
    kinds = [type(row) for row in map(ImageReader(encoder.prepare, leaves_plain=True).read, find_images(photos))]
    assert kinds.count(Undecoded) == 5
    expected = list(stream_images(find_images(photos), encoder, size=5))
    found = list(encode_ahead(find_images(photos), decoding_launcher(encoder), size=5, plan=plan))
    for one, (batch, z) in zip(found, expected, strict=True):
        assert [row for row in one.rows if isinstance(row, Skipped)] == list(batch.skipped)
        assert [row.path for row in one.rows] == [row.path for row in batch.rows]
        torch.testing.assert_close(one.z, z, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_killed", [False, True])
def test_files_that_processes_read_have_the_vectors_of_those_that_threads_read(encoder, photos, is_killed, monkeypatch):
    def ask_once(worker, paths):
        files = ask(worker, paths)
        if is_killed:
            worker._process.kill()
            worker._process.wait()
        return files

    ask = _Worker._ask
    monkeypatch.setattr(_Worker, "_ask", ask_once)
    (by_threads,) = encode_ahead(find_images(photos), decoding_launcher(encoder), size=64, plan=ReadPlan(1, 64))
    many = [entry for _ in range(5) for entry in find_images(photos)]
    plan = ReadPlan(2, 4, in_processes=True)
    for found in encode_ahead(many, decoding_launcher(encoder), size=12, plan=plan):
        assert [row.path for row in found.rows] == [row.path for row in by_threads.rows]
        assert [row for row in found.rows if isinstance(row, Skipped)] == [
            row for row in by_threads.rows if isinstance(row, Skipped)
        ]
        assert torch.equal(found.z, by_threads.z)


def test_a_file_that_the_decoder_refuses_is_decoded_by_pillow_and_fails_no_other(encoder, photos):
    def refuse_some(files, device):
        broken = torch.tensor(list(BROKEN), dtype=torch.uint8)
        return decode_by_pillow([broken if len(file) % 3 == 0 else file for file in files], device)

    expected = list(encode_ahead(find_images(photos), launcher(encoder), size=12, plan=ReadPlan(1, 4)))
    refusing = decoding_launcher(encoder, refuse_some)
    found = list(encode_ahead(find_images(photos), refusing, size=12, plan=ReadPlan(1, 4)))
    assert [row.path for row in found[0].rows] == [row.path for row in expected[0].rows]
    torch.testing.assert_close(found[0].z, expected[0].z, atol=1e-5, rtol=1e-5)


def test_a_file_that_neither_decodes_is_skipped_with_pillows_reason(encoder, photos, monkeypatch):
    def refuse(files, device):
        raise RuntimeError("Failed to decode batch")

    (photos / "00.jpg").write_bytes(b"\xff\xd8\xff damaged \xff\xd9")
    monkeypatch.setattr("unseen.features.output.plain_size", lambda data: (50, 40))
    expected = [row for one in stream_images(find_images(photos), encoder) for row in one[0].skipped]
    (found,) = encode_ahead(find_images(photos), decoding_launcher(encoder, refuse), size=64)
    assert [row for row in found.rows if isinstance(row, Skipped)] == expected
    assert len(expected) == 3


def test_a_batch_without_pixels_has_no_vectors(encoder, photos):
    entries = [Entry.of_bytes("a", "", lambda: b"no picture")] * 3
    for some in (launcher(encoder), decoding_launcher(encoder)):
        (found,) = encode_ahead(entries, some, size=3)
        assert found.z.numel() == 0
        assert [type(row) for row in found.rows] == [Skipped] * 3


def test_processes_read_where_there_are_cores_and_a_python_to_start(encoder, monkeypatch):
    decoding, cores = decoding_launcher(encoder), 16
    monkeypatch.setattr(encoding, "usable_cores", lambda: cores)
    assert read_plan(launcher(encoder)) == ReadPlan(16, 4)
    assert read_plan(decoding) == ReadPlan(8, 16, in_processes=True)
    cores = 2
    assert read_plan(decoding) == ReadPlan(4, 16)
    cores = 16
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert read_plan(decoding) == ReadPlan(4, 16)


def test_reading_does_not_run_far_ahead(encoder):
    begun = []
    entries = (Entry(str(i), "", lambda: begun.append(1) or pictures(1)[0].pixels) for i in range(500))
    run = encode_ahead(entries, launcher(encoder), size=4, plan=ReadPlan(2, 4))
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert len(begun) <= 6 * 4 + 4 * (2 * 2 + 1) + 4  # six batches, and the chunks that threads hold


def test_pictures_are_not_held_once_they_are_pixels(encoder, photos):
    for one in encode_ahead(find_images(photos), launcher(encoder), size=5):
        assert all(isinstance(row, Entry | Skipped) for row in one.rows)


def test_an_error_in_a_thread_reaches_the_caller_and_ends_the_threads():
    def fail(number):
        if number == 5:
            raise ValueError("the sixth")
        return number

    results = ahead(fail, range(100), workers=2, most=3, name="failing")
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="the sixth"):
        next(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("failing")]


@pytest.fixture
def on_gpu(monkeypatch):
    """Take every encoder as one on a GPU; its device is the CPU."""
    monkeypatch.setattr(caching, "gpu_encoder", lambda encoder: encoder)


def test_streams_and_folders_read_ahead_have_the_same_vectors(encoder, photos, tmp_path, on_gpu, monkeypatch):
    ahead_of = list(stream_images(find_images(photos), encoder, size=5))
    cache = FeatureCache(tmp_path / "ahead", encoder)
    counts = [(len(one), len(one.skipped)) for one in encode_images(find_images(photos), encoder, cache, size=5)]
    monkeypatch.undo()
    in_step = list(stream_images(find_images(photos), encoder, size=5))
    list(encode_images(find_images(photos), encoder, FeatureCache(tmp_path / "in step", encoder), size=5))
    for (one, z), (other, same) in zip(ahead_of, in_step, strict=True):
        assert [(row.path, type(row)) for row in one.rows] == [(row.path, type(row)) for row in other.rows]
        assert torch.equal(z, same)
    assert counts == [(4, 1), (4, 1), (2, 0)]
    first, second = (load_features(tmp_path / name) for name in ("ahead", "in step"))
    assert first.keys == second.keys
    assert torch.equal(first.z, second.z)


def test_vectors_of_a_cache_are_not_computed_again(encoder, photos, tmp_path, on_gpu, monkeypatch):
    first = list(stream_images(find_images(photos), encoder, FeatureCache(tmp_path / "f", encoder), size=5))
    calls = []
    vectors = encoder.vectors
    monkeypatch.setattr(encoder, "vectors", lambda pixels: calls.append(len(pixels)) or vectors(pixels))
    pictures(1, seed=9)[0].pixels.save(photos / "02a.png")
    again = list(stream_images(find_images(photos), encoder, FeatureCache(tmp_path / "f", encoder), size=5))
    assert calls == [1]
    z = torch.cat([z for _, z in again])
    assert torch.equal(z[[0, 1, 2, *range(4, 11)]], torch.cat([z for _, z in first]))


def test_an_encoder_elsewhere_is_not_read_ahead(encoder):
    assert gpu_encoder(encoder) is None
    assert gpu_encoder(ColourEncoder()) is None


def test_decoding_on_a_gpu_needs_one(encoder, tmp_path):
    for other in (encoder, ColourEncoder()):
        with pytest.raises(EncoderError, match=r"expected an encoder on a GPU, .* on cpu; leave --decode out"):
            check_decoder(other, "gpu")
    with pytest.raises(SettingError, match="expected a way of decoding out of pillow, gpu, got 'cpu'"):
        next(encode_images([], encoder, FeatureCache(tmp_path / "f", encoder), decoder="cpu"))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.gpu
@gpu
def test_a_gpu_that_is_read_ahead_for_has_the_vectors_of_one_that_waits(photos, tmp_path):
    encoder: Any = TinyOffline(device="cuda")
    (found,) = stream_images(find_images(photos), encoder)
    expected = encoder.images(found[0].images).cpu()
    assert torch.equal(found[1], expected)
    many = [entry for _ in range(20) for entry in find_images(photos)]
    batches = list(stream_images(many, encoder, size=12))
    for batch, z in batches:
        assert len(batch.skipped) == 2
        assert torch.equal(z, batches[0][1])


@pytest.mark.gpu
@gpu
def test_files_decoded_on_a_gpu_have_nearly_the_same_vectors(photos, tmp_path):
    pytest.importorskip("torchvision")
    encoder: Any = TinyOffline(device="cuda")
    features = {}
    for decoder in ("pillow", "gpu"):
        cache = FeatureCache(tmp_path / decoder, encoder)
        (done,) = encode_images(find_images(photos), encoder, cache, decoder=decoder)
        features[decoder] = load_features(tmp_path / decoder)
        assert len(done.skipped) == 2
    assert features["gpu"].keys == features["pillow"].keys
    assert float((features["gpu"].z * features["pillow"].z).sum(1).min()) > 0.9
