"""Files that are decoded on a GPU: which these are, and that their pixels are Pillow's but for rounding."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from helpers.pictures import encoded, flat
from helpers.stand_ins import decode_by_pillow
from unseen.encoders.preprocess import CLIP
from unseen.errors import EncoderError
from unseen.features.encoding import GpuReader, is_plain_jpeg
from unseen.images import Entry, Image

CPU = torch.device("cpu")
NOISE = Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def with_exif(orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    return exif


def smooth(seed, size=(60, 40)):
    rough = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return encoded(Pillow.fromarray(rough).resize(size, Pillow.Resampling.BICUBIC), "JPEG", quality=95)


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
        encoded(NOISE, "JPEG", exif=with_exif(6)),
        encoded(NOISE.convert("L"), "JPEG"),
        encoded(NOISE.convert("CMYK"), "JPEG"),
        encoded(flat(size=(801, 40)), "JPEG"),  # too narrow
        b"\xff\xd8\xff damaged \xff\xd9",
    ],
    ids=range(10),
)
def test_all_others_are_left_to_pillow(data):
    assert not is_plain_jpeg(data)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (96, 72), (224, 224), (10, 7)], ids=str)
@pytest.mark.parametrize("changes", [{}, {"resize": 64, "crop": 48, "resample": "bilinear"}, {"squash": True}], ids=str)
def test_pictures_are_resized_as_by_pillow_but_for_rounding(size, changes):
    steps = replace(CLIP, **changes)
    picture = Pillow.open(io.BytesIO(smooth(0, size)))
    (expected,) = steps.cropped([Image("", picture)])
    found = steps.resized(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    assert found.shape == expected.shape
    assert mean_difference(found, expected) < 0.5  # of 255


def rows_of(files, reader):
    return reader.read_all([Entry.of_bytes(str(place), "", lambda file=file: file) for place, file in enumerate(files)])


def reader(device=CPU, steps=CLIP, **changes):
    return GpuReader(steps.cropped, lambda pixels: pixels, device, steps=steps, **changes)


def test_a_file_that_cannot_be_decoded_fails_no_other():
    def refuse_one(files, device):
        if any(torch.equal(file, torch.tensor(list(files_of[2]), dtype=torch.uint8)) for file in files):
            raise RuntimeError("Failed to decode batch")
        decoded.append(len(files))
        return decode_by_pillow(files, device)

    files_of, decoded = [smooth(seed) for seed in range(5)], []
    rows = rows_of(files_of, reader(decode=refuse_one))
    assert decoded == [1, 1, 1, 1]
    assert [row.image.path for row in rows] == list("01234")
    assert mean_difference(torch.stack([row.pixels for row in rows]), by_pillow(files_of)) < 0.5


def test_a_machine_without_a_decoder_is_refused():
    def missing(files, device):
        raise RuntimeError("not compiled with nvJPEG support")

    with pytest.raises(EncoderError, match="expected torchvision with a JPEG decoder for cpu, got not compiled"):
        reader(decode=missing).check()
    reader(decode=decode_by_pillow).check()


@pytest.mark.parametrize("wrong", [{"resample": "lanczos"}, {"resize": 48, "crop": 56}])
def test_steps_that_torch_does_not_know_are_refused(wrong):
    with pytest.raises(EncoderError, match="leave --decode out"):
        reader(steps=replace(CLIP, **wrong)).check()


@pytest.mark.gpu
@on_a_gpu
def test_a_gpu_decodes_as_pillow_but_for_rounding():
    pytest.importorskip("torchvision")
    files = [smooth(seed, size) for seed, size in enumerate([(500, 375), (96, 72), (375, 500), (640, 480), (224, 224)])]
    on_gpu = reader(torch.device("cuda", 0))
    on_gpu.check()
    pixels = torch.stack([row.pixels for row in rows_of(files, on_gpu)])
    assert pixels.is_cuda
    assert mean_difference(pixels.cpu(), by_pillow(files)) < 2
