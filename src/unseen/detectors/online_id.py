"""Algorithm 2: the same learning with known names only, no negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.detectors.merging import Rule, added, merged_bank
from unseen.gate import decaying_steps, exact_near_bound
from unseen.labels import LabelSpace
from unseen.odds import logit, logits, top
from unseen.scan import Anchors, is_on_gpu, read, scan
from unseen.scan.base import Teacher
from unseen.text import mcm, text_logits


class Bank(NamedTuple):
    """Moving prototypes of one label set, and how many samples taught them."""

    bank: Float[Tensor, "K d"]
    seen: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class OnlineID(Detector[Bank]):
    """Learn the known bank from samples whose best name the frozen text is sure of, and score by Eq. 48."""

    tau: float = 0.01  # also for the gate: at MCM's own temperature of 1 no sample ever reaches beta
    kappa: float = 0.05
    rho: float = 0.1
    beta: float = 0.95

    name: ClassVar[str] = "online-id"
    needs_names: ClassVar[int] = 2
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive(tau=self.tau, kappa=self.kappa)
        in_range("rho", self.rho, 0, 100)
        in_range("beta", self.beta, 0, 1)

    def start(self) -> Bank:
        """Return the known bank as frozen text."""
        anchors = self.labels.id_anchors
        return Bank(anchors, torch.zeros((), dtype=torch.int64, device=anchors.device))

    @cached_property
    def names_only(self) -> LabelSpace:
        """Return the label space without the negatives, which this method never looks at."""
        return self.labels.with_negatives(0)

    def read(self, state: Bank, z: Float[Tensor, "T d"]) -> Reading:
        """Score a block with the bank as it is (Eq. 48)."""
        best = top(logits(z, state.bank, tau=self.tau))
        return Reading.frozen(best.log_odds, best.label)

    def learn(self, state: Bank, z: Float[Tensor, "T d"]) -> tuple[Reading, Bank]:
        """Learn from a block in order and score each sample after its own update (Algorithm 2)."""
        teacher, trust = self._gated(z)
        known = trust >= logit(self.beta)
        step, seen = decaying_steps(known, state.seen, rho=self.rho, dtype=z.dtype)
        best, bank = scan(state.bank, teacher, z, step, kappa=self.kappa, tau=self.tau)
        return Reading.of(best.log_odds, best.label, known), Bank(bank, seen)

    def block_for(self, z: Tensor) -> int:
        """Return the whole stream on a GPU: nothing of the size of samples times names is ever stored there."""
        return max(1, len(z)) if is_on_gpu(z) else super().block_for(z)

    def _gated(self, z: Float[Tensor, "T d"]) -> tuple[Teacher, Float[Tensor, " T"]]:
        labels = self.names_only
        teacher: Teacher
        if is_on_gpu(z):
            teacher, trust = Anchors(labels.id_anchors, self.tau), read(z, labels.id_anchors, tau=self.tau).log_odds
        else:
            text = text_logits(labels, z, tau=self.tau)
            teacher, trust = text.known, mcm(text)
        return teacher, exact_near_bound(trust, mcm, labels, z, tau=self.tau, bound=logit(self.beta))

    def _merged(self, start: Bank, ends: Sequence[Bank], rule: Rule) -> Bank:
        return merged(start, ends, rule)


def merged(start: Bank, ends: Sequence[Bank], rule: Rule) -> Bank:
    """Return one bank out of several taught side by side."""
    taught = [end.seen - start.seen for end in ends]
    bank = merged_bank(start.bank, [end.bank for end in ends], taught, rule=rule)
    return Bank(bank, added(start.seen, [end.seen for end in ends]))
