"""CLIPN (ICCV 2023), inference only: a second text tower that says "no", read from a published checkpoint.

The checkpoint is a state dict of an open_clip model (under `state_dict`, names perhaps after `module.`) with both text
towers: the parts of the second end in `_no`, and `prompt_no` holds 16 learned additions to every token and position,
whose mean is used. Image features must come from the image tower of the same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention, softplus

from unseen.detectors.base import DetectorOutput, Frozen, above_zero
from unseen.errors import EncoderError, LabelError
from unseen.labels import LabelSpace

HEAD = 64  # width of an attention head, in every CLIP
PARTS = ("token_embedding_no.weight", "positional_embedding_no", "text_projection_no", "prompt_no")


@dataclass(frozen=True, eq=False)
class CLIPNTowers:
    """The two text towers of a checkpoint."""

    weights: Mapping[str, Tensor]
    quick: bool = False  # x sigmoid(1.702 x), as OpenAI's weights need, instead of GELU
    head: int = HEAD

    @classmethod
    def load(cls, path: str | Path, **settings: Any) -> CLIPNTowers:
        """Read a checkpoint; refuse a file without the second tower."""
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise EncoderError(
                f"expected a checkpoint of CLIPN at {path}, got none ({error}); check the path"
            ) from error
        weights = found.get("state_dict", found) if isinstance(found, Mapping) else {}
        weights = {name.removeprefix("module."): one for name, one in weights.items() if isinstance(one, Tensor)}
        if missing := [name for name in PARTS if name not in weights]:
            raise EncoderError(f"expected a checkpoint of CLIPN at {path}, got one without {missing[0]}; pass its file")
        return cls({name: one.float() for name, one in weights.items()}, **settings)

    @property
    def scale(self) -> float:
        """The scale of the logits."""
        return float(self.weights["logit_scale"].exp()) if "logit_scale" in self.weights else 100.0

    def texts(self, ids: Int[Tensor, "n S"], *, no: bool = False) -> Float[Tensor, "n d"]:
        """Unit vectors of tokenised texts, by the first tower or by the "no" tower."""
        suffix, length = "_no" if no else "", ids.shape[1]
        x = (
            self.weights[f"token_embedding{suffix}.weight"][ids]
            + self.weights[f"positional_embedding{suffix}"][:length]
        )
        if no:
            x = x + self.weights["prompt_no"].mean(0)[:length]
        block = f"transformer{suffix}.resblocks."
        for number in range(sum(name.startswith(block) and name.endswith("ln_1.weight") for name in self.weights)):
            x = self._block(x, f"{block}{number}.")
        x = self._norm(x, f"ln_final{suffix}")
        last = x[torch.arange(len(x)), ids.argmax(1)]  # the end of a text has the highest token
        return normalize(last @ self.weights[f"text_projection{suffix}"], dim=1)

    def _block(self, x: Float[Tensor, "n S w"], name: str) -> Float[Tensor, "n S w"]:
        x = x + self._attention(self._norm(x, f"{name}ln_1"), f"{name}attn.")
        hidden = self._linear(self._norm(x, f"{name}ln_2"), f"{name}mlp.c_fc")
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.quick else gelu(hidden)
        return x + self._linear(hidden, f"{name}mlp.c_proj")

    def _attention(self, x: Float[Tensor, "n S w"], name: str) -> Float[Tensor, "n S w"]:
        joined = linear(x, self.weights[f"{name}in_proj_weight"], self.weights[f"{name}in_proj_bias"])
        query, key, value = (part.unflatten(2, (-1, self.head)).transpose(1, 2) for part in joined.chunk(3, dim=2))
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear(found.transpose(1, 2).flatten(2), f"{name}out_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])


def no_names(names: Sequence[str]) -> tuple[str, ...]:
    """What the rows of the second tower are called."""
    return tuple(f"no {name}" for name in names)


@torch.no_grad()
def clipn_space(names: Sequence[str], ids: Int[Tensor, "K S"], towers: CLIPNTowers, *, encoder: str = "") -> LabelSpace:
    """The label space of a checkpoint: names by the first tower, and `no NAME` by the second as negatives."""
    known, negative = towers.texts(ids), towers.texts(ids, no=True)
    return LabelSpace(
        tuple(names), no_names(names), known, negative, "clipn", encoder, {"clipn_scale": f"{towers.scale:.6g}"}
    )


@dataclass(frozen=True, eq=False)
class CLIPN(Frozen):
    """Score by the log-odds of sum_y softmax(l)_y sigmoid(l_y - no_y) ("agreeing to differ")."""

    scale: float = above_zero(100.0)

    name: ClassVar[str] = "clipn"
    needs_names: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse a label space that has not one `no NAME` per name."""
        super().__post_init__()
        if self.labels.negatives != no_names(self.labels.names):
            raise LabelError("expected the label space of a CLIPN checkpoint, got another; use learn.clipn_space()")

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        yes, no = (self.scale * z @ rows.T for rows in (self.labels.id_anchors, self.labels.ood_anchors))
        share = yes.log_softmax(1)
        # log sigmoid(x) = -softplus(-x); what is not accepted is refused, so that the odds are their ratio
        accepted, refused = (torch.logsumexp(share - softplus(one), 1) for one in (no - yes, yes - no))
        return DetectorOutput.frozen(accepted - refused, yes.argmax(1))
