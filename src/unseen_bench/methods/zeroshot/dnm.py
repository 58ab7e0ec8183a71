"""DNM (KDD 2026): NegLabel corrected for the known names hidden among the negatives."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, setting
from unseen.detectors.neglabel import NegLabel, grouped_log_odds
from unseen.odds import energy

# Q negatives per group against K known names make Z <= 0 possible when alpha <= Q / (K + Q). The known names then keep
# this share of their own mass in Z, so that a higher score stays a higher score.
LEAST_KEPT = 1e-3


@dataclass(frozen=True, eq=False)
class DNM(NegLabel):
    """Score by the log-odds of the known names' mean share of Z, the mass of a group without its hidden known part.

    Z = ID + Q (mean_neg / alpha - (1 - alpha) / alpha mean_ID) is `kept * ID + neg / alpha`, with `kept` the same for
    every sample. So `kept * ID / Z` is an ordinary share, and the correction a constant added to a group's log-odds.
    The published formula has no guard for Z <= 0, which alpha K / (1 - alpha) negatives per group make possible: ours
    keeps `kept` at 0.001 there. With K = 1,000 it acts from 1,000 per group at alpha 0.5, from 137 at 0.12.
    """

    # published for B/16, L/14 and RN50; 0.12 for B/32 and L/14@336, 1 for ImageNet-A, -R, -S
    alpha: float = setting(0.5, 0, 1, low_open=True)

    name: ClassVar[str] = "dnm"

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        known = z @ self.labels.id_anchors.T / self.tau
        negative = z @ self.labels.ood_anchors.T / self.tau
        corrected = energy(known) + math.log(self.kept_share * self.alpha)
        return DetectorOutput.frozen(grouped_log_odds(corrected, negative, self.members), known.argmax(dim=1))

    @property
    def kept_share(self) -> float:
        """The share of the known names' mass that stays in Z once the hidden part of a group is taken out."""
        hidden = self.members.shape[1] * (1 - self.alpha) / (self.alpha * len(self.labels.names))
        return max(1 - hidden, LEAST_KEPT)
