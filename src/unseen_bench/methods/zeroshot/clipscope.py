"""CLIPScope (WACV 2025): p_known among known and negative names, divided by how often a name was predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

from unseen.detectors.base import Detector, DetectorOutput, positive
from unseen.odds import energy, text_logits, top


class NameCounts(NamedTuple):
    """How often each known name was the best one so far; every count starts at 1."""

    predicted: Int[Tensor, " K"]


@dataclass(frozen=True, eq=False)
class CLIPScope(Detector[NameCounts]):
    """Score by the log of p(best name) * (known mass) / (share of that name among the predictions before this one).

    The text stays frozen; the counts are all it learns. A name that is predicted often counts less.
    """

    tau: float = 0.01

    name: ClassVar[str] = "clipscope"
    needs_negatives: ClassVar[bool] = True
    needs_names: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the temperature."""
        super().__post_init__()
        positive(tau=self.tau)

    def start(self) -> NameCounts:
        """One prediction of each name."""
        anchors = self.labels.id_anchors
        return NameCounts(torch.ones(len(anchors), dtype=torch.int64, device=anchors.device))

    def read(self, state: NameCounts, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block with the counts as they are."""
        score, label = self._text(z)
        share = state.predicted[label].double() / state.predicted.sum()
        return DetectorOutput.frozen(score - share.log().to(score), label)

    def learn(self, state: NameCounts, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, NameCounts]:
        """Score each sample of a block by the predictions before it, then count its own."""
        score, label = self._text(z)
        hits = one_hot(label, len(state.predicted))
        before = (hits.cumsum(dim=0) - hits).gather(1, label.unsqueeze(1)).squeeze(1)
        total = state.predicted.sum() + torch.arange(len(z), device=z.device)
        share = (state.predicted[label] + before).double() / total
        return DetectorOutput.frozen(score - share.log().to(score), label), NameCounts(
            state.predicted + hits.sum(dim=0)
        )

    def _text(self, z: Tensor) -> tuple[Float[Tensor, " T"], Int[Tensor, " T"]]:
        """The log of p(best name) * (known mass), and the best name."""
        text = text_logits(self.labels, z, tau=self.tau)
        best = top(text.known)
        return logsigmoid(best.log_odds) + logsigmoid(best.energy - energy(text.negative)), best.label
