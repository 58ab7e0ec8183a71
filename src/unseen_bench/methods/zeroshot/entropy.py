"""Entropy: how undecided the softmax over the known names is."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, FrozenSoftmax
from unseen.odds import logits


@dataclass(frozen=True, eq=False)
class Entropy(FrozenSoftmax):
    """Score by the negative entropy of the softmax over the known names."""

    name: ClassVar[str] = "entropy"
    needs_names: ClassVar[int] = 2

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        log_p = (logits(z, self.labels.id_anchors, tau=self.tau)).log_softmax(dim=1)
        return DetectorOutput.frozen((log_p.exp() * log_p).sum(dim=1), log_p.argmax(dim=1))
