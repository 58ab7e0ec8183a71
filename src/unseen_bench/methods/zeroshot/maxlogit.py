"""Max logit: the cosine to the nearest known name."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, Frozen


@dataclass(frozen=True, eq=False)
class MaxLogit(Frozen):
    """Score by the largest cosine to a known name."""

    name: ClassVar[str] = "maxlogit"

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        return DetectorOutput.frozen(*(z @ self.labels.id_anchors.T).max(dim=1))
