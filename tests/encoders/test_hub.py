"""Encoders by hub id and local folder."""

import shutil
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from transformers import AutoModel, CLIPImageProcessorPil, CLIPModel, CLIPProcessor

from helpers.tiny_models import pictures, save_clip, save_siglip, tokenizer
from unseen.encoders.catalogue import SHORT_NAMES, load_encoder, resolve_name
from unseen.encoders.hub import HubEncoder
from unseen.encoders.torch_encoder import patches_inside
from unseen.errors import EncoderError, MissingExtra, SettingError, UnseenError


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    return save_siglip(tmp_path_factory.mktemp("siglip"))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_images_and_texts_are_unit_float32_in_one_space(kind, request):
    encoder = load_encoder(request.getfixturevalue(kind), device="cpu")
    images, texts = encoder.images(pictures(3)), encoder.texts(["a photo of a cat", "dog"])
    assert images.dtype == texts.dtype == torch.float32
    assert images.shape == (3, encoder.dim)
    assert texts.shape == (2, encoder.dim)
    torch.testing.assert_close(torch.cat([images, texts]).norm(dim=-1), torch.ones(5))


def test_patches_are_those_of_a_last_block_in_which_tokens_attend_to_themselves(clip):
    encoder: Any = load_encoder(clip, device="cpu")
    vision = encoder.model.vision_model
    with torch.inference_mode():
        before = vision(pixel_values=encoder.prepare(pictures(2)), output_hidden_states=True).hidden_states[-2]
        alone = torch.full((17, 17), -torch.inf).fill_diagonal_(0)
        after = vision.encoder.layers[-1](before, attention_mask=alone.expand(2, 1, 17, 17))
        whole = after if isinstance(after, torch.Tensor) else after[0]
        expected = encoder.model.visual_projection(vision.post_layernorm(whole[:, 1:]))
    expected = torch.nn.functional.normalize(expected, dim=-1)
    torch.testing.assert_close(encoder.patches(pictures(2)), expected, atol=1e-5, rtol=1e-4)
    assert expected.shape == (2, 16, 8)


def test_the_window_that_is_the_whole_photo_has_the_vector_of_the_photo_and_others_have_their_own(clip):
    encoder: Any = load_encoder(clip, device="cpu")
    whole, left, right = (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0)
    batch = [replace(one, pixels=one.pixels.resize((32, 32))) for one in pictures(2)]  # squashing changes nothing
    found = encoder.windows(batch, [whole, left, right])
    torch.testing.assert_close(found[:, 0], encoder.images(batch), atol=1e-5, rtol=1e-4)
    assert float((found[:, 1] * found[:, 2]).sum(-1).max()) < 0.9999


def test_a_window_covers_the_patches_whose_centres_lie_in_it():
    inside = patches_inside([(0.0, 0.0, 0.5, 1.0), (0.25, 0.5, 1.0, 0.75)], 4).view(2, 4, 4).int()
    assert inside.tolist() == [[[1, 1, 0, 0]] * 4, [[0] * 4, [0] * 4, [0, 1, 1, 1], [0] * 4]]


@pytest.mark.parametrize("missing", ["preprocessor_config.json", "tokenizer.json", "config.json"])
def test_a_folder_without_its_parts_is_refused(clip, tmp_path, missing):
    folder = shutil.copytree(clip, tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(EncoderError, match=f"got no {missing}"):
        load_encoder(folder)


def test_damaged_weights_are_refused(clip, tmp_path):
    folder = shutil.copytree(clip, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="expected the model"):
        load_encoder(folder)


def test_the_fingerprint_follows_weights_activation_and_preprocessing(clip, tmp_path):
    same = HubEncoder(str(shutil.copytree(clip, tmp_path / "same")), device="cpu", dtype=torch.bfloat16)
    weights = HubEncoder(str(save_clip(tmp_path / "weights", seed=1)), device="cpu")
    activation = HubEncoder(str(save_clip(tmp_path / "gelu", hidden_act="gelu")), device="cpu")
    folder = shutil.copytree(clip, tmp_path / "pixels")
    config = folder / "preprocessor_config.json"
    config.write_text(config.read_text().replace('"resample": 3', '"resample": 2'))
    resampling = HubEncoder(str(folder), device="cpu")
    first = HubEncoder(str(clip), device="cpu")
    assert first.fingerprint == same.fingerprint
    assert len({e.fingerprint for e in (first, weights, activation, resampling)}) == 4


def test_without_a_network_the_offline_encoder_is_offered_at_once(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EncoderError, match="run `unseen models fetch offline` once and use the encoder offline"):
        load_encoder("nobody/such-model")


def test_a_torchvision_for_another_torch_is_named_as_the_reason(clip, monkeypatch):
    def refuse(*source, **options):  # as transformers does when it imports a class
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'CLIPModel'") from error

    monkeypatch.setattr(AutoModel, "from_pretrained", refuse)
    for source in (clip, "nobody/such-model"):
        with pytest.raises(UnseenError, match=r"got RuntimeError: operator torchvision.*pip uninstall torchvision"):
            load_encoder(source)


def test_names_resolve_to_a_backend_and_its_own_name():
    assert resolve_name("ViT-L/14@336") == ("hub", SHORT_NAMES["ViT-L/14@336"])
    assert resolve_name("offline") == ("offline", "")
    assert resolve_name("open_clip:RN50/openai") == ("open_clip", "RN50/openai")
    assert resolve_name("models/b16.onnx") == ("onnx", "models/b16.onnx")
    assert resolve_name("google/siglip-base") == ("hub", "google/siglip-base")
    with pytest.raises(SettingError, match="expected the name of an encoder"):
        resolve_name(" ")


def test_open_clip_is_an_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
    with pytest.raises(MissingExtra, match=r"\(extra unseen\[open-clip\]\) .* pip install 'open-clip-torch"):
        load_encoder("open_clip:RN50/openai")


def test_a_loaded_model_with_its_processor_is_the_encoder_of_its_folder(clip):
    named, folder = load_encoder(clip, device="cpu"), clip
    model, images = CLIPModel.from_pretrained(folder), CLIPImageProcessorPil.from_pretrained(folder)
    for parts in ((images, tokenizer()), (CLIPProcessor(image_processor=images, tokenizer=tokenizer()),)):
        own = load_encoder(model, *parts, device="cpu")
        assert own.fingerprint == named.fingerprint
        assert torch.equal(own.images(pictures(2)), named.images(pictures(2)))
        assert torch.equal(own.texts(["a cat"]), named.texts(["a cat"]))
    with pytest.raises(EncoderError, match=r"load_encoder\(model, image_processor, tokenizer\)"):
        load_encoder(model, images)


def test_a_model_that_is_no_clip_is_refused_with_what_would_work() -> None:
    with pytest.raises(EncoderError, match=r"load_encoder\(model, processor\).* got Linear and 0 more"):
        load_encoder(torch.nn.Linear(2, 2))
    with pytest.raises(SettingError, match="got 1 more; pass the model itself"):
        load_encoder("offline", object())


def test_patches_need_clip(siglip):
    with pytest.raises(EncoderError, match="expected a CLIP vision transformer for patch features, got siglip"):
        cast(HubEncoder, load_encoder(siglip, device="cpu")).patches(pictures(1))
    with pytest.raises(EncoderError, match="expected a CLIP vision transformer"):
        cast(HubEncoder, load_encoder(siglip, device="cpu")).windows(pictures(1), [(0.0, 0.0, 1.0, 1.0)])
