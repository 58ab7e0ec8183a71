"""Preprocessing against the processors of transformers."""

import pytest
import torch
from PIL import Image as Pillow
from transformers import CLIPImageProcessorPil

from helpers.tiny_models import pictures
from unseen.encoders import preprocess
from unseen.encoders.preprocess import Preprocess
from unseen.errors import EncoderError
from unseen.images import Image


@pytest.mark.parametrize("size", [(50, 40), (40, 50), (224, 224), (301, 97), (97, 301), (640, 427), (7, 5)])
def test_preprocessing_equals_that_of_transformers(size):
    (image,) = pictures(1, size=size)
    expected = CLIPImageProcessorPil()(images=[image.pixels], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(preprocess.CLIP([image]), expected, atol=1e-5, rtol=1e-5)


def test_preprocessing_survives_as_text():
    assert Preprocess.from_json(preprocess.CLIP.to_json()) == preprocess.CLIP
    assert Preprocess.from_processor(CLIPImageProcessorPil()) == preprocess.CLIP
    with pytest.raises(EncoderError, match="expected preprocessing as JSON"):
        Preprocess.from_json("{}")


@pytest.mark.parametrize("size", [(1, 50_000), (50_000, 1), (30, 20_000)])
def test_a_narrow_picture_is_cut_before_its_short_side_is_resized(size, monkeypatch):
    resized = []
    resize = Pillow.Image.resize

    def note(picture, size, *arguments):
        resized.append(size)
        return resize(picture, size, *arguments) if max(size) < 10_000 else Pillow.new("RGB", (224, 224))

    monkeypatch.setattr(Pillow.Image, "resize", note)
    assert preprocess.CLIP([Image("narrow", Pillow.new("RGB", size))]).shape == (1, 3, 224, 224)
    assert max(resized[0]) <= 16 * 224 + 224
