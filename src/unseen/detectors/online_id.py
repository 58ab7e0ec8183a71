"""Algorithm 2: the same learning with known names only, no negatives."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, setting
from unseen.detectors.single_bank import Bank, SingleBank
from unseen.gate import exact_near_bound
from unseen.labels import LabelSpace
from unseen.odds import logit, top
from unseen.scan import Anchors, TargetSource, read
from unseen.text import TextLogits, mcm


@dataclass(frozen=True, eq=False)
class OnlineID(SingleBank):
    """Learn the known bank from samples whose best name the frozen text is sure of, and score by Eq. 48.

    `tau` is also the temperature of the gate: at MCM's own temperature of 1 no sample ever reaches `beta`.
    """

    beta: float = setting(0.95, 0, 1)

    name: ClassVar[str] = "online-id"

    @cached_property
    def names_only(self) -> LabelSpace:
        """The label space without the negatives, which this method does not use."""
        return self.labels.with_negatives(0)

    def learn_with_trust(
        self, state: Bank, z: Float[Tensor, "T d"], sources: TextLogits, trust: Float[Tensor, " T"]
    ) -> tuple[DetectorOutput, Bank]:
        """Learn and score with routes from elsewhere; samples of trust logit(beta) or more teach."""
        return self._taught(state, z, sources.known, trust >= logit(self.beta))

    def teaching(self, z: Float[Tensor, "T d"]) -> tuple[TargetSource, Bool[Tensor, " T"]]:
        """The frozen text as soft targets, and the samples whose MCM is at least `beta` (Eq. 46)."""
        targets, bound = self._text_targets(z), logit(self.beta)
        best = read(z, targets.rows, tau=self.tau) if isinstance(targets, Anchors) else top(targets)
        return targets, exact_near_bound(best.log_odds, mcm, self.names_only, z, tau=self.tau, bound=bound) >= bound
