"""CLIPN from a checkpoint in its published layout, made here from a tiny CLIP of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.streams import space, unit
from helpers.tiny_models import save_clip
from unseen.encoders import load_encoder
from unseen.encoders.hub import HubEncoder
from unseen.errors import EncoderError, LabelError
from unseen_bench.checks import check_detector
from unseen_bench.methods.prompts import CLIPN, CLIPNTowers, clipn_space

NAMES = ("cat", "dog", "nice")


def published(model: torch.nn.Module, *, prompts: int = 2) -> dict[str, Tensor]:
    """The text tower of a model of transformers as open_clip names it, twice: for yes and for no."""
    own = model.state_dict()
    text: dict[str, Tensor] = {
        "token_embedding{}.weight": own["text_model.embeddings.token_embedding.weight"],
        "positional_embedding{}": own["text_model.embeddings.position_embedding.weight"],
        "text_projection{}": own["text_projection.weight"].T,
        **{f"ln_final{{}}.{part}": own[f"text_model.final_layer_norm.{part}"] for part in ("weight", "bias")},
    }
    for part in ("weight", "bias"):
        layer, block = "text_model.encoder.layers.0.", "transformer{}.resblocks.0."
        joined = torch.cat([own[f"{layer}self_attn.{one}_proj.{part}"] for one in "qkv"])
        text |= {
            f"{block}attn.in_proj_{part}": joined,
            f"{block}attn.out_proj.{part}": own[f"{layer}self_attn.out_proj.{part}"],
            f"{block}ln_1.{part}": own[f"{layer}layer_norm1.{part}"],
            f"{block}ln_2.{part}": own[f"{layer}layer_norm2.{part}"],
            f"{block}mlp.c_fc.{part}": own[f"{layer}mlp.fc1.{part}"],
            f"{block}mlp.c_proj.{part}": own[f"{layer}mlp.fc2.{part}"],
        }
    both = {name.format(suffix): one.clone() for name, one in text.items() for suffix in ("", "_no")}
    places, width = own["text_model.embeddings.position_embedding.weight"].shape
    return both | {"prompt_no": torch.zeros(prompts, places, width), "logit_scale": torch.tensor(4.0)}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> HubEncoder:
    made = load_encoder(save_clip(tmp_path_factory.mktemp("clip")), device="cpu", dtype=torch.float32)
    assert isinstance(made, HubEncoder)
    return made


def ids_of(encoder: HubEncoder) -> Tensor:
    return encoder.tokenizer([f"a {name}" for name in NAMES], padding=True, return_tensors="pt")["input_ids"]


def save(tmp_path: Path, weights: dict[str, Tensor]) -> Path:
    path = tmp_path / "clipn.pt"
    torch.save({"epoch": 10, "state_dict": {f"module.{name}": one for name, one in weights.items()}}, path)
    return path


def towers(encoder: HubEncoder, tmp_path: Path, weights: dict[str, Tensor] | None = None) -> CLIPNTowers:
    return CLIPNTowers.load(save(tmp_path, weights or published(encoder.model)), quick=True, head=8)


def highest_end(weights: dict[str, Tensor], ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Weights and tokens in which the end is the last word of the vocabulary, as in CLIP's."""
    order = torch.tensor([0, 1, 2, *range(4, 11), 3])
    moved = {name: one[order] if name.startswith("token_embedding") else one for name, one in weights.items()}
    return moved, torch.argsort(order)[ids]


def test_the_first_tower_gives_the_features_of_the_same_weights_in_transformers(
    encoder: HubEncoder, tmp_path: Path
) -> None:
    weights, ids = highest_end(published(encoder.model), ids_of(encoder))
    made = towers(encoder, tmp_path, weights)
    expected = encoder.texts([f"a {name}" for name in NAMES])
    torch.testing.assert_close(made.texts(ids), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(made.texts(ids, no=True), expected, atol=1e-5, rtol=0)


def test_the_mean_of_the_learned_prompts_is_added_in_the_second_tower_only(encoder: HubEncoder, tmp_path: Path) -> None:
    weights, ids = highest_end(published(encoder.model), ids_of(encoder))
    before = towers(encoder, tmp_path, weights)
    weights["prompt_no"] = torch.stack([torch.ones(12, 16), torch.full((12, 16), 3.0)])
    shifted = dict(weights) | {"prompt_no": torch.full((1, 12, 16), 2.0)}
    one, two = towers(encoder, tmp_path, weights), towers(encoder, tmp_path, shifted)
    torch.testing.assert_close(one.texts(ids, no=True), two.texts(ids, no=True))
    torch.testing.assert_close(one.texts(ids), before.texts(ids))


def test_the_score_equals_its_formula_and_passes_every_check(encoder: HubEncoder, tmp_path: Path) -> None:
    weights, ids = highest_end(published(encoder.model), ids_of(encoder))
    weights["text_projection_no"] = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    made = towers(encoder, tmp_path, weights)
    labels = clipn_space(NAMES, ids, made).to(dtype=torch.float64)
    assert made.scale == pytest.approx(float(torch.tensor(4.0).exp()))
    detector = CLIPN(labels, scale=7.0)
    z = unit(4, 8)
    yes, no = 7 * z @ labels.id_anchors.T, 7 * z @ labels.ood_anchors.T
    share = (yes.softmax(1) * torch.sigmoid(yes - no)).sum(1)
    torch.testing.assert_close(detector.score(None, z).score, torch.logit(share))
    check_detector(detector)


def test_other_files_and_label_spaces_are_refused(encoder: HubEncoder, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="got one without token_embedding_no"):
        CLIPNTowers.load(save(tmp_path, {"token_embedding.weight": torch.zeros(2, 2)}))
    with pytest.raises(EncoderError, match="expected a checkpoint of CLIPN"):
        CLIPNTowers.load(tmp_path / "nothing.pt")
    with pytest.raises(LabelError, match="expected the label space of a CLIPN checkpoint"):
        CLIPN(space())
