"""What every scan takes and returns."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.odds import Top


class Anchors(NamedTuple):
    """Target logits not yet computed: `z @ rows.T / tau`, computed for the samples that teach and for no other."""

    rows: Float[Tensor, "C d"]
    tau: float


class SharedTargets(NamedTuple):
    """Soft targets computed once for each image, and which of them each sample of S streams is taught towards."""

    rows: Float[Tensor, "n C"]
    at: Int[Tensor, "S T"]  # anything for a sample that does not teach


TargetSource = Tensor | Anchors | SharedTargets
"""Where soft targets come from: logits [T, C] whose softmax they are, anchors, or a table."""


class Scan(NamedTuple):
    """How each sample reads the bank right after its own update, and the bank after the last one."""

    read: Top
    bank: Float[Tensor, "C d"]


def joined(reads: list[Top]) -> Top:
    """Consecutive reads as one."""
    return Top(*(torch.cat(part) for part in zip(*reads, strict=True)))
