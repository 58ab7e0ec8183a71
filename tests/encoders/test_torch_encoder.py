"""What every torch encoder shares, on a stand-in for open_clip that needs no torchvision."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.tiny_models import pictures
from unseen.encoders import torch_encoder
from unseen.encoders.open_clip import OpenClipEncoder
from unseen.errors import EncoderError, LabelError

CONTEXT = 12


class Towers(torch.nn.Module):
    """Two linear towers into four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = torch.nn.Linear(12, 4), torch.nn.Linear(CONTEXT, 4)
        self.calls: list[int] = []

    def encode_image(self, pixels: Tensor) -> Tensor:
        return self.image(pixels.flatten(1))

    def encode_text(self, tokens: Tensor) -> Tensor:
        self.calls.append(len(tokens))
        return self.text(tokens.to(self.text.weight.dtype))


class Letters:
    """A tokenizer of one token per letter."""

    context_length = CONTEXT

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def __call__(self, texts: list[str]) -> Tensor:
        return torch.tensor([(self.encode(text) + [0] * CONTEXT)[:CONTEXT] for text in texts])


def shrink(picture):
    return torch.tensor(np.asarray(picture.resize((2, 2)))).permute(2, 0, 1).float() / 255


@pytest.fixture
def source(monkeypatch):
    stand_in = SimpleNamespace(
        list_pretrained=lambda: [("tiny", "made-up")],
        get_pretrained_cfg=lambda *_: {},
        create_model_from_pretrained=lambda *_, **__: (Towers(), shrink),
        get_tokenizer=lambda _: Letters(),
    )
    monkeypatch.setitem(sys.modules, "open_clip", stand_in)
    return "tiny/made-up"


def test_images_and_texts_are_unit_float32_vectors_of_the_towers(source):
    encoder = OpenClipEncoder(source, device="cpu", dtype=torch.float32)
    pixels = torch.stack([shrink(image.pixels) for image in pictures(3)])
    with torch.inference_mode():
        images, texts = encoder.model.encode_image(pixels), encoder.model.encode_text(Letters()(["cat", "dog"]))
    torch.testing.assert_close(encoder.images(pictures(3)), images / images.norm(dim=1, keepdim=True))
    torch.testing.assert_close(encoder.texts(["cat", "dog"]), texts / texts.norm(dim=1, keepdim=True))
    assert (encoder.dim, encoder.name) == (4, "open_clip:tiny/made-up")


def test_texts_are_encoded_in_batches_and_come_back_in_order(source, monkeypatch):
    encoder = OpenClipEncoder(source, device="cpu")
    words = [f"word {i}" for i in range(7)]
    whole = encoder.texts(words)
    monkeypatch.setattr(torch_encoder, "TEXT_BATCH", 3)
    torch.testing.assert_close(encoder.texts(words), whole)
    assert encoder.model.calls == [7, 3, 3, 1]


def test_bad_texts_and_unknown_weights_are_refused(source):
    with pytest.raises(LabelError, match=f"at most {CONTEXT} tokens, got 'cat cat"):
        OpenClipEncoder(source, device="cpu").texts(["cat " * 20])
    with pytest.raises(LabelError, match=r"pass \['cat'\]"):
        OpenClipEncoder(source, device="cpu").texts("cat")
    with pytest.raises(EncoderError, match="for example tiny/made-up"):
        OpenClipEncoder("large/none")
