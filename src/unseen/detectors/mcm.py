"""MCM (NeurIPS 2022): how far the best known name stands out among the known names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import Reading, positive
from unseen.detectors.frozen import Frozen
from unseen.odds import logits, top


@dataclass(frozen=True, eq=False)
class MCM(Frozen):
    """Score by the log-odds of the largest softmax probability over the known names (Eq. 2)."""

    tau: float = 1.0  # on raw cosines, as published; not the 0.01 of the other methods

    name: ClassVar[str] = "mcm"
    needs_names: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the temperature."""
        super().__post_init__()
        positive(tau=self.tau)

    def read(self, state: None, z: Float[Tensor, "T d"]) -> Reading:
        """Score a block with the frozen text."""
        best = top(logits(z, self.labels.id_anchors, tau=self.tau))
        return Reading.frozen(best.log_odds, best.label)
