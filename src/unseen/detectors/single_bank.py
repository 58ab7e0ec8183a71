"""What Algorithm 2 and the framework share: one bank of prototypes of the known names, taught sample by sample."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.detectors.base import DetectorOutput
from unseen.detectors.merging import MergeRule, merged_bank, sum_of_parts
from unseen.detectors.prototypes import PrototypeLearner
from unseen.gate import decaying_steps
from unseen.odds import logits, top
from unseen.scan import Anchors, TargetSource, is_on_gpu, scan


class Bank(NamedTuple):
    """Moving prototypes of the known names, and how many samples taught them."""

    bank: Float[Tensor, "K d"]
    seen: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class SingleBank(PrototypeLearner[Bank]):
    """Learn one bank and score by the log-odds of its best name. Subclasses write `teaching`."""

    needs_names: ClassVar[int] = 2

    @abstractmethod
    def teaching(self, z: Float[Tensor, "T d"]) -> tuple[TargetSource, Bool[Tensor, " T"]]:
        """The soft targets of samples, and which samples teach."""

    def start(self) -> Bank:
        """The bank as frozen text."""
        anchors = self.labels.id_anchors
        return Bank(anchors, torch.zeros((), dtype=torch.int64, device=anchors.device))

    def read(self, state: Bank, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block with the bank as it is (Eq. 48)."""
        best = top(logits(z, state.bank, tau=self.tau))
        return DetectorOutput.frozen(best.log_odds, best.label)

    def learn(self, state: Bank, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Bank]:
        """Learn from a block in order (Eq. 8) and score each sample after its own update."""
        return self._taught(state, z, *self.teaching(z))

    def _taught(
        self, state: Bank, z: Float[Tensor, "T d"], targets: TargetSource, taught: Bool[Tensor, " T"]
    ) -> tuple[DetectorOutput, Bank]:
        step, seen = decaying_steps(taught, state.seen, rho=self.rho, dtype=z.dtype)
        best, bank = scan(state.bank, targets, z, step, kappa=self.kappa, tau=self.tau)
        return DetectorOutput.of(best.log_odds, best.label, taught), Bank(bank, seen)

    def _text_targets(self, z: Float[Tensor, "T d"]) -> Tensor | Anchors:
        """The logits of the frozen text; on a GPU the anchors, because logits of whole streams do not fit."""
        anchors = self.labels.id_anchors
        return Anchors(anchors, self.tau) if is_on_gpu(z) else logits(z, anchors, tau=self.tau)

    def _merged(self, start: Bank, ends: Sequence[Bank], rule: MergeRule) -> Bank:
        taught = [end.seen - start.seen for end in ends]
        bank = merged_bank(start.bank, [end.bank for end in ends], taught, rule=rule)
        return Bank(bank, sum_of_parts(start.seen, [end.seen for end in ends]))
