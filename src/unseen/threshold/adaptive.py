"""A threshold that follows the unlabelled stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.base import Decisions, RecallInterval, ThresholdRule, check_recall
from unseen.threshold.history import MarginHistory
from unseen.threshold.nodes import interpolate


@dataclass(frozen=True)
class Adaptive(ThresholdRule[MarginHistory]):
    """Set the threshold from the stream so that it accepts a share `recall` of the known images.

    Where the detector derives its baseline, margins mean the same in every stream, and `mixture.fit_mixture` of all of
    them, and of the images that are clearly known, gives the threshold from the first sample on; a sample counts in
    proportion to its place in the stream, because margins improve while a detector learns. Elsewhere the units of a
    margin are unknown: the threshold is 0 until `warmup` margins have been seen, then the mixtures are fitted to the
    latest `window` margins, brought to the mean and deviation of a typical stream. That promises no recall: calibrate.

    Updates happen at sample counts from the start of the stream, at least every `every` samples, so the threshold does
    not depend on how the stream is split into calls. Decisions about the first `warmup` samples are marked as warming.

    >>> from unseen import Session, demo
    >>> Session(demo.load().space, Adaptive(recall=0.9)).is_warming
    True
    """

    recall: float = 0.95
    warmup: int = 128
    every: int = 128
    window: int = 4096
    derives_baseline: bool = False  # set by the session from the detector

    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        check_recall(self.recall)
        if not 1 <= self.every <= self.window or not 2 <= self.warmup <= self.window:
            raise SettingError(
                f"expected 1 <= every <= window and 2 <= warmup <= window, got every={self.every}, "
                f"warmup={self.warmup}, window={self.window}; the defaults are a good start"
            )

    def start(self) -> MarginHistory:
        """An empty history and what the prior says, or a threshold of 0."""
        if self.derives_baseline:
            return MarginHistory.start(self.recall, pending=self.every)
        fresh = MarginHistory.start(self.recall, pending=0, window=self.window)
        return fresh._replace(threshold=torch.zeros_like(fresh.threshold))

    def for_detector(self, *, derives_baseline: bool) -> Adaptive:
        """This rule, with margins in known units where the detector derives its baseline."""
        return replace(self, derives_baseline=derives_baseline)

    def threshold_of(self, state: MarginHistory) -> float:
        return float(state.threshold)

    def recall_interval(self, state: MarginHistory) -> RecallInterval | None:
        """Where the share of known images that is kept lies, if the units of margins are known."""
        return RecallInterval(*state.recall.tolist()) if self.derives_baseline else None

    def is_warming(self, state: MarginHistory) -> bool:
        return int(state.seen) < self.warmup

    def p_known(self, state: MarginHistory, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The probability that each sample is known, from the fitted mixtures."""
        if not self.derives_baseline and self.is_warming(state):
            return torch.sigmoid(margin)
        return interpolate(state.probability, state.units.apply(margin.detach().cpu())).to(margin)

    def learn(
        self,
        state: MarginHistory,
        margin: Float[Tensor, " T"],
        clarity: Float[Tensor, " T"] | None = None,
    ) -> tuple[Decisions, MarginHistory]:
        """The decision about each sample, under the threshold set before it, and the state after the last."""
        margin = margin.detach().cpu()
        clarity = torch.full_like(margin, -torch.inf) if clarity is None else clarity.detach().cpu()
        decided: list[Decisions] = []
        start = 0
        while start < len(margin) or not decided:
            rows = slice(start, min(len(margin), start + self._until_update(int(state.seen))))
            decided.append(self.read(state, margin[rows]))
            state = self._learned(state, margin[rows], clarity[rows])
            start = rows.stop
        return Decisions.joined(decided), state

    def _learned(
        self, state: MarginHistory, margin: Float[Tensor, " n"], clarity: Float[Tensor, " n"]
    ) -> MarginHistory:
        """The state after samples that come before the next update, or complete it."""
        is_due = len(margin) == self._until_update(int(state.seen))
        if self.derives_baseline:
            state = state.waiting_with(torch.stack([margin, clarity], dim=1).double())
            return state.updated(self.recall) if is_due else state
        state = state.ring_with(margin)
        return state.ring_updated(self.recall) if is_due and not self.is_warming(state) else state

    def _until_update(self, seen: int) -> int:
        """How many samples may come before the next update: fewer at the start, where the units are known."""
        interval = min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.derives_baseline else self.every
        return interval - seen % interval
