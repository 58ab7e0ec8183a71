"""The losses of prompt learners, as functions of features: cosines are of unit rows, and CLIP's scale is 100."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

SCALE = 100.0
NEGATIVE_SCALE = 20.0  # of LSN's negative logits


def name_loss(z: Float[Tensor, "B d"], rows: Float[Tensor, "C d"], label: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """The cross-entropy of 100 cosines (CoOp)."""
    return cross_entropy(SCALE * z @ rows.T, label)


def patch_entropy(
    patches: Float[Tensor, "B P d"], rows: Float[Tensor, "K d"], label: Int[Tensor, " B"], *, top: int
) -> Float[Tensor, ""]:
    """The mean entropy of name probabilities of patches whose `top` best names lack the label (LoCoOp).

    0 where every patch has its label among them.
    """
    logits = SCALE * patches @ rows.T
    best = logits.topk(top, dim=2).indices
    outside = (best != label[:, None, None]).all(2)
    entropy = -(logits.softmax(2) * logits.log_softmax(2)).sum(2)
    return (entropy * outside).sum() / outside.sum().clamp(min=1)


def negative_loss(
    z: Float[Tensor, "B d"], negative: Float[Tensor, "N K d"], label: Int[Tensor, " B"]
) -> Float[Tensor, ""]:
    """The mean over N prompts per name of the cross-entropy of 20 (1 - cosine to "not this name") (LSN)."""
    distance = NEGATIVE_SCALE * (1 - torch.einsum("bd,nkd->nbk", z, negative))
    return torch.stack([cross_entropy(one, label) for one in distance]).mean()


def multi_label_loss(
    z: Float[Tensor, "B d"], rows: Float[Tensor, "G K d"], label: Int[Tensor, " B"]
) -> Float[Tensor, ""]:
    """The mean logistic loss of 100 cosines to G prompts per name; those of the label hold (NegPrompt)."""
    logits = SCALE * torch.einsum("bd,gkd->bgk", z, rows)
    holds = one_hot(label, rows.shape[1]).to(logits).unsqueeze(1).expand_as(logits)
    return binary_cross_entropy_with_logits(logits, holds)


def mean_pairwise_cosine(rows: Float[Tensor, "N *K d"]) -> Float[Tensor, ""]:
    """The mean cosine of different rows among N, over all K."""
    flat = rows.reshape(len(rows), -1, rows.shape[-1])
    if len(rows) < 2:
        return flat.new_zeros(())
    first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    return (flat[first] * flat[second]).sum(-1).mean()
