"""The formulas of one detector over one label space: what it is computed from in torch, NumPy and kernels alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unseen.detectors.pooled.evidence import Evidence, EvidenceTerm, LabelStatistics, LogitMoments, baseline, evidence
from unseen.labels import LabelSpace
from unseen.text import TextLogits


@dataclass(frozen=True)
class Formulas:
    """The label space, the terms of the evidence, and the settings of a detector."""

    labels: LabelSpace
    statistics: LabelStatistics
    terms: Sequence[EvidenceTerm]
    tau: float
    popularity: float
    naming_popularity: float

    def evidence(self, text: TextLogits) -> Evidence:
        """The frozen evidence of each image."""
        return evidence(text, self.statistics, self.terms)

    def baseline(self, moments: LogitMoments) -> Tensor:
        """The frozen evidence of an image related to no name."""
        return baseline(moments, self.statistics, self.terms)
