"""Files that are decoded on a GPU: which these are, and that their pixels are Pillow's but for rounding."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from helpers.pictures import encoded, flat, turned
from helpers.stand_ins import decode_by_pillow
from unseen.encoders import gpu_jpeg
from unseen.encoders.gpu_jpeg import GpuDecoder, PlainJpeg, resized
from unseen.encoders.preprocess import CLIP
from unseen.errors import EncoderError
from unseen.images import Image

CPU = torch.device("cpu")
NOISE = Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def smooth(seed, size=(60, 40)):
    rough = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return encoded(Pillow.fromarray(rough).resize(size, Pillow.Resampling.BICUBIC), "JPEG", quality=95)


def plain(data):
    found = PlainJpeg.of_bytes(data)
    assert found
    return found


def by_pillow(files):
    return CLIP.cropped([Image("", Pillow.open(io.BytesIO(file)).convert("RGB")) for file in files])


def mean_difference(a, b):
    return float((a.int() - b.int()).abs().float().mean())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encoded(NOISE, "PNG"),
        encoded(NOISE, "JPEG")[:-2],  # cut off
        encoded(NOISE, "JPEG") + b"more",
        encoded(NOISE, "JPEG", progressive=True),
        encoded(NOISE, "JPEG", exif=turned(6)),
        encoded(NOISE.convert("L"), "JPEG"),
        encoded(NOISE.convert("CMYK"), "JPEG"),
        encoded(flat(size=(4001, 40)), "JPEG"),  # too narrow
        b"\xff\xd8\xff damaged \xff\xd9",
    ],
    ids=range(10),
)
def test_all_others_are_left_to_pillow(data):
    assert PlainJpeg.of_bytes(data) is None


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (96, 72), (224, 224), (10, 7), (333, 20)], ids=str)
@pytest.mark.parametrize("changes", [{}, {"resize": 64, "crop": 48, "resample": "bilinear"}, {"squash": True}], ids=str)
def test_pictures_are_resized_as_by_pillow_but_for_rounding(size, changes):
    steps = replace(CLIP, **changes)
    picture = Pillow.open(io.BytesIO(smooth(0, size)))
    (expected,) = steps.cropped([Image("", picture)])
    found = resized(torch.from_numpy(np.array(picture)).permute(2, 0, 1), steps)
    assert found.shape == expected.shape
    assert mean_difference(found, expected) < 0.5  # of 255


def test_pixels_come_in_order_whatever_is_decoded_at_once(monkeypatch):
    calls = []

    def note(files, device):
        calls.append(len(files))
        return decode_by_pillow(files, device)

    monkeypatch.setattr(gpu_jpeg, "NUMBERS", replace(gpu_jpeg.NUMBERS, together=3 * 60 * 40))
    files = [smooth(seed) for seed in range(7)]
    decoded = GpuDecoder(CLIP, CPU, note)([plain(file) for file in files])
    assert calls == [3, 3, 1]
    assert decoded.places == list(range(7))
    assert mean_difference(decoded.pixels, by_pillow(files)) < 0.5


def test_a_machine_without_a_decoder_is_refused():
    def missing(files, device):
        raise RuntimeError("not compiled with nvJPEG support")

    with pytest.raises(EncoderError, match="expected torchvision with a JPEG decoder for cpu, got not compiled"):
        GpuDecoder(CLIP, CPU, missing).check()
    GpuDecoder(CLIP, CPU, decode_by_pillow).check()


@pytest.mark.parametrize("wrong", [{"resample": "lanczos"}, {"resize": 48, "crop": 56}])
def test_steps_that_torch_does_not_know_are_refused(wrong):
    with pytest.raises(EncoderError, match="leave --decode out"):
        GpuDecoder(replace(CLIP, **wrong), CPU)


@pytest.mark.gpu
@on_a_gpu
def test_a_gpu_decodes_as_pillow_but_for_rounding():
    pytest.importorskip("torchvision")
    files = [smooth(seed, size) for seed, size in enumerate([(500, 375), (96, 72), (375, 500), (640, 480), (224, 224)])]
    on_gpu = GpuDecoder(CLIP, torch.device("cuda", 0))
    on_gpu.check()
    decoded = on_gpu([plain(file) for file in files])
    assert decoded.places == list(range(5))
    assert mean_difference(decoded.pixels.cpu(), by_pillow(files)) < 2
    torn = plain(files[3])._replace(data=torch.tensor(list(b"\xff\xd8\xff no picture \xff\xd9"), dtype=torch.uint8))
    assert on_gpu([plain(files[0]), torn, plain(files[1])]).places == [0, 2]
