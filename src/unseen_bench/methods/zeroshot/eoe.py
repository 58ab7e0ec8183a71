"""EOE (ICML 2024): the best known name against the best of the outlier names that a language model proposed."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, FrozenSoftmax, setting
from unseen.odds import energy


@dataclass(frozen=True, eq=False)
class EOE(FrozenSoftmax):
    """Score by the largest probability of a known name less `beta` times the largest of an outlier name.

    The negatives of the label space are the outlier names; the authors ask a language model for them (500 for far
    OOD, 3 per class for near).
    """

    beta: float = setting(0.25, 0, 100)

    name: ClassVar[str] = "eoe"
    needs_negatives: ClassVar[bool] = True

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        known = z @ self.labels.id_anchors.T / self.tau
        outlier = z @ self.labels.ood_anchors.T / self.tau
        total = torch.logaddexp(energy(known), energy(outlier))
        peak, label = known.max(dim=1)
        penalty = self.beta * (outlier.amax(dim=1) - total).exp()
        return DetectorOutput.frozen((peak - total).exp() - penalty, label)
