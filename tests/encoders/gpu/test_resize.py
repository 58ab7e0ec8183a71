"""Resizing on a GPU against Pillow: the same bits, in Triton's interpreter and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from helpers.interpreter import interpreted
from unseen.encoders.gpu.filters import BITS, axis_weights
from unseen.encoders.gpu.resize import GpuResize
from unseen.encoders.preprocess import CLIP, Preprocess, ResizedAxis
from unseen.errors import EncoderError
from unseen.images import Image

SMALL = replace(CLIP, resize=56, crop=56)
STEPS = [
    SMALL,
    replace(CLIP, resize=64, crop=48, resample="bilinear"),
    replace(CLIP, resize=40, crop=40, squash=True),
]
SIZES = [(120, 90), (90, 120), (56, 56), (10, 7), (200, 3), (333, 77), (1, 1), (40, 64)]  # width and height


def noise(sizes):
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in sizes]


def by_pillow(steps, arrays):
    return steps.cropped([Image("", Pillow.fromarray(array)) for array in arrays])


def on(device, steps, arrays):
    pictures = [torch.from_numpy(array).permute(2, 0, 1).contiguous().to(device) for array in arrays]
    return GpuResize(steps, torch.device(device))(pictures).cpu()


def resized(row, axis, count, resample):
    """A row of pixels resized by the tables, in whole numbers."""
    table = axis_weights(axis, count, resample).astype(np.int64)
    pixels = row[table[:, :1] + np.arange(table.shape[1] - 1)].astype(np.int64)
    total = (pixels * table[:, 1:, None]).sum(1) + (1 << (BITS - 1))
    return np.clip(total >> BITS, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_weights_are_those_of_pillow(resample):
    number = {"bilinear": 2, "bicubic": 3}[resample]
    for size in (*range(1, 60), 375, 500, 4000):
        (row,) = noise([(size, 1)])
        for count in (40, 224):
            expected = np.asarray(Pillow.fromarray(row).resize((count, 1), number))
            np.testing.assert_array_equal(resized(row[0], ResizedAxis(0, size, count, 0), count, resample), expected[0])


def test_weights_read_within_the_picture():
    for size, count in ((1, 224), (3, 224), (500, 224), (4000, 30)):
        table = axis_weights(ResizedAxis(7, size, count, 0), count, "bicubic")
        assert table[:, 0].min() >= 7
        assert table[:, 0].max() + table.shape[1] - 1 <= 7 + size
        assert abs(table[:, 1:].sum(1) - (1 << BITS)).max() < table.shape[1]


@interpreted
@pytest.mark.parametrize("steps", STEPS)
def test_pictures_are_resized_as_by_pillow(steps):
    arrays = noise(SIZES)
    torch.testing.assert_close(on("cpu", steps, arrays), by_pillow(steps, arrays), rtol=0, atol=0)


@interpreted
def test_a_tall_picture_differs_by_rounding():
    smooth = Pillow.fromarray(noise([(8, 40)])[0]).resize((60, 300), Pillow.Resampling.BICUBIC)
    array = np.array(smooth)
    apart = on("cpu", SMALL, [array]).int() - by_pillow(SMALL, [array]).int()
    assert apart.abs().max() <= 1


@interpreted
def test_no_pictures_are_no_pixels():
    assert on("cpu", SMALL, []).shape == (0, 56, 56, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("steps", [*STEPS, CLIP], ids=str)
def test_pictures_are_resized_on_a_gpu_as_by_pillow(steps):
    arrays = noise([*SIZES, (500, 375), (375, 500), (2000, 1500), (224, 224), (96, 72)])
    torch.testing.assert_close(on("cuda", steps, arrays), by_pillow(steps, arrays), rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [{"resample": "lanczos"}, {"resize": 48, "crop": 56}])
def test_steps_that_the_kernels_do_not_know_are_refused(wrong):
    with pytest.raises(EncoderError, match="leave --decode out"):
        GpuResize(Preprocess(**{**SMALL.__dict__, **wrong}), torch.device("cpu"))
