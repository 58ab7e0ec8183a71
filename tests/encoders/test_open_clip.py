"""The open_clip encoder on a small random model in a folder; open_clip needs torchvision, else all is skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.tiny_models import pictures
from unseen.encoders import Encoder, load_encoder
from unseen.errors import EncoderError

pytest.importorskip("torchvision", exc_type=ImportError)
open_clip = pytest.importorskip("open_clip", exc_type=ImportError)

MODEL = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
PIXELS = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("open_clip")
    (made / "open_clip_config.json").write_text(json.dumps({"model_cfg": MODEL, "preprocess_cfg": PIXELS}))
    torch.manual_seed(0)
    weights = {name: part.contiguous() for name, part in open_clip.CLIP(**MODEL).state_dict().items()}
    save_file(weights, made / "open_clip_model.safetensors")
    return made


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return load_encoder(f"open_clip:{folder}", device="cpu")


def test_images_and_texts_are_the_models_own_at_unit_length(encoder):
    images, texts = pictures(3), ["a photo of a cat", "dog"]
    model, tokenizer = encoder.model, open_clip.SimpleTokenizer(context_length=20)
    with torch.inference_mode():
        expected = model.encode_image(torch.stack([encoder.preprocess(image.pixels) for image in images]))
        words = model.encode_text(tokenizer(texts))
    for found, plain in ((encoder.images(images), expected), (encoder.texts(texts), words)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, plain / plain.norm(dim=1, keepdim=True))
    assert encoder.dim == 16


def test_a_folder_brings_its_own_preprocessing_and_activation(encoder):
    from torchvision.transforms import Normalize

    (normalise,) = [step for step in encoder.preprocess.transforms if isinstance(step, Normalize)]
    assert tuple(normalise.mean) == (0.4, 0.5, 0.6)
    assert any(type(part).__name__ == "QuickGELU" for part in encoder.model.modules())


def test_the_fingerprint_is_of_weights_and_preprocessing(folder, encoder, tmp_path):
    assert load_encoder(f"open_clip:{folder}", device="cpu").fingerprint == encoder.fingerprint
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = {"model_cfg": MODEL, "preprocess_cfg": PIXELS | {"mean": [0.5, 0.5, 0.5]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert load_encoder(f"open_clip:{tmp_path}", device="cpu").fingerprint != encoder.fingerprint


def test_what_cannot_be_loaded_is_said(folder, tmp_path):
    with pytest.raises(EncoderError, match="ARCHITECTURE/PRETRAINED or a folder"):
        load_encoder("open_clip:nothing")
    (tmp_path / "open_clip_config.json").write_text((folder / "open_clip_config.json").read_text())
    with pytest.raises(EncoderError, match="with its weights"):  # never random ones
        load_encoder(f"open_clip:{tmp_path}")


def test_weights_trained_with_quick_gelu_get_it(monkeypatch):
    asked = {}

    def created(name, **options):
        asked.update(options, name=name)
        raise RuntimeError("no network")

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", created)
    for source, quick in (("ViT-B-32/openai", True), ("RN50/yfcc15m", True), ("ViT-B-32/laion2b_s34b_b79k", False)):
        with pytest.raises(EncoderError, match="no network"):
            load_encoder(f"open_clip:{source}")
        assert (asked["name"], asked["force_quick_gelu"]) == (source.split("/")[0], quick)


def test_a_loaded_model_with_its_preprocessing_and_tokenizer_gives_the_same_vectors(encoder):
    own = load_encoder(encoder.model, encoder.preprocess, encoder.tokenizer, device="cpu")
    assert torch.equal(own.images(pictures(2)), encoder.images(pictures(2)))
    with pytest.raises(EncoderError, match="get_tokenizer"):
        load_encoder(encoder.model, encoder.preprocess)
