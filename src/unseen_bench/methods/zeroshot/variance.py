"""Variance: how unequal the softmax probabilities of the known names are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, FrozenSoftmax
from unseen.odds import logits


@dataclass(frozen=True, eq=False)
class Variance(FrozenSoftmax):
    """Score by the variance of the softmax probabilities of the known names, which MCM's authors compare with."""

    name: ClassVar[str] = "variance"
    needs_names: ClassVar[int] = 2

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block with the frozen text."""
        p = logits(z, self.labels.id_anchors, tau=self.tau).softmax(dim=1)
        return DetectorOutput.frozen((p - 1 / p.shape[1]).square().mean(dim=1), p.argmax(dim=1))
