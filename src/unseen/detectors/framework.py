"""The framework of Eq. 7-8: learn prototypes of any label set, every sample a teacher, with targets of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.detectors.merging import Rule
from unseen.detectors.online_id import Bank, merged
from unseen.errors import FeatureError
from unseen.gate import decaying_steps
from unseen.odds import logits, top
from unseen.scan import Anchors, is_on_gpu, scan
from unseen.scan.base import Teacher

Targets = Callable[[Float[Tensor, "T d"]], Float[Tensor, "T K"]]


@dataclass(frozen=True, eq=False)
class Framework(Detector[Bank]):
    """Learn from every sample towards soft targets: the frozen text's own prediction, or what `targets(z)` says."""

    tau: float = 0.01
    kappa: float = 0.05
    rho: float = 0.1
    targets: Targets | None = None

    name: ClassVar[str] = "framework"
    needs_names: ClassVar[int] = 2
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive(tau=self.tau, kappa=self.kappa)
        in_range("rho", self.rho, 0, 100)

    def start(self) -> Bank:
        """Return the bank as frozen text."""
        anchors = self.labels.id_anchors
        return Bank(anchors, torch.zeros((), dtype=torch.int64, device=anchors.device))

    def read(self, state: Bank, z: Float[Tensor, "T d"]) -> Reading:
        """Score a block by the log-odds of the best class."""
        best = top(logits(z, state.bank, tau=self.tau))
        return Reading.frozen(best.log_odds, best.label)

    def learn(self, state: Bank, z: Float[Tensor, "T d"]) -> tuple[Reading, Bank]:
        """Learn from every sample of a block in order (Eq. 8) and score each after its own update."""
        taught = torch.ones(len(z), dtype=torch.bool, device=z.device)
        step, seen = decaying_steps(taught, state.seen, rho=self.rho, dtype=z.dtype)
        best, bank = scan(state.bank, self._teacher(z), z, step, kappa=self.kappa, tau=self.tau)
        return Reading.of(best.log_odds, best.label, taught), Bank(bank, seen)

    def _merged(self, start: Bank, ends: Sequence[Bank], rule: Rule) -> Bank:
        return merged(start, ends, rule)

    def block_for(self, z: Tensor) -> int:
        """Return the whole stream on a GPU, unless targets of the caller's own size come with it."""
        return max(1, len(z)) if is_on_gpu(z) and self.targets is None else super().block_for(z)

    def _teacher(self, z: Float[Tensor, "T d"]) -> Teacher:
        if self.targets is None and is_on_gpu(z):
            return Anchors(self.labels.id_anchors, self.tau)
        if self.targets is None:
            return logits(z, self.labels.id_anchors, tau=self.tau)
        targets = self.targets(z).to(z)
        if targets.shape != (len(z), len(self.labels.names)) or not bool((targets >= 0).all()):
            raise FeatureError(
                f"expected soft targets of shape [{len(z)}, {len(self.labels.names)}] without negative entries, "
                f"got {list(targets.shape)}; return one distribution over the names per sample"
            )
        if not bool(((targets.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise FeatureError("expected soft targets that sum to 1, got other sums; normalise them with softmax")
        return targets.log()
