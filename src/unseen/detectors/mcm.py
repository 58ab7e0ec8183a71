"""MCM (NeurIPS 2022): how far the best known name stands out among the known names."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, FrozenSoftmax
from unseen.odds import logits, top


@dataclass(frozen=True, eq=False)
class MCM(FrozenSoftmax):
    """Score by the log-odds of the largest softmax probability over the known names (Eq. 2).

    `tau` is 1 as published; the methods with negatives use 0.01.
    """

    name: ClassVar[str] = "mcm"
    needs_names: ClassVar[int] = 2

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        best = top(logits(z, self.labels.id_anchors, tau=self.tau))
        return DetectorOutput.frozen(best.log_odds, best.label)
