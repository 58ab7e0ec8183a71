"""Prototypes in image space from examples, with negatives: the setting of TINS."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.detectors.base import DetectorOutput, above_zero
from unseen.odds import energy, logits, neglabel, text_logits
from unseen_bench.methods.fewshot.base import TAU, FewShot


@dataclass(frozen=True, eq=False)
class FewShotPrototypes(FewShot):
    """Add log-odds of image prototypes to NegLabel's: means of examples against negatives moved across the gap.

    The setting of TINS (names, negatives, a few images of each name), not TINS itself, whose code is not published. A
    negative, and a name without examples, lies at its text moved by mean image - mean text.
    """

    tau: float = above_zero(TAU)
    kappa: float = above_zero(0.05)  # temperature in image space

    name: ClassVar[str] = "few-shot-prototypes"
    needs_negatives: ClassVar[bool] = True

    @cached_property
    def prototypes(self) -> tuple[Float[Tensor, "K d"], Float[Tensor, "L d"]]:
        """The prototypes of the names and of the negatives."""
        text, label = self.labels.id_anchors, self.examples.label
        gap = self.images.mean(0) - text[label].mean(0)
        total = torch.zeros_like(text).index_add(0, label, self.images)
        has_some = (self.examples.counts(len(text)) > 0).unsqueeze(1)
        known = normalize(torch.where(has_some, total, text + gap), dim=1)
        return known, normalize(self.labels.ood_anchors + gap, dim=1)

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        text = text_logits(self.labels, z, tau=self.tau)
        known, negative = (logits(z, rows, tau=self.kappa) for rows in self.prototypes)
        return DetectorOutput.frozen(neglabel(text) + energy(known) - energy(negative), (text.known + known).argmax(1))
