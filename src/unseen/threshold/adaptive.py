"""A threshold that follows the unlabelled stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold import recorded
from unseen.threshold.base import Decisions, RecallInterval, ThresholdRule, check_recall
from unseen.threshold.history import MarginHistory, Steps, Units, learned_block
from unseen.threshold.mixture import fit_mixture
from unseen.threshold.nodes import counts, interpolate, interpolate_few
from unseen.threshold.recorded import UPDATES, LearningGraph

TOGETHER = 32  # updates that are fitted in one pass over the hypotheses


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
        return interpolate(state.probability, state.units.apply(margin)).to(margin)

    def learn(
        self,
        state: MarginHistory,
        margin: Float[Tensor, " T"],
        clarity: Float[Tensor, " T"] | None = None,
        *,
        device: torch.device | None = None,
    ) -> tuple[Decisions, MarginHistory]:
        """The decision about each sample, under the threshold set before it, and the state after the last."""
        margin = margin.detach().cpu()
        if not margin.shape[0]:
            return self.read(state, margin), state
        if not self.derives_baseline:
            return self._learn_in_ring(state, margin)
        clarity = torch.full_like(margin, -torch.inf) if clarity is None else clarity.detach().cpu()
        if self._wait(state, margin.shape[0]):
            return self._learn_waiting(state, margin, clarity)
        with recorded.acquire(device, self.recall, self.every) as graph:
            return self._learn_counted(state, margin, clarity, graph)

    def _wait(self, state: MarginHistory, count: int) -> bool:
        """Whether the next `count` margins wait for an update."""
        seen = int(state.seen)
        interval = self._interval(seen)
        return self.derives_baseline and seen % interval + count < interval

    def _learn_waiting(
        self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"]
    ) -> tuple[Decisions, MarginHistory]:
        """What `learn` does for margins that wait, in a fifth of the time: by NumPy."""
        seen, waiting, values = int(state.seen), int(state.waiting), margin.numpy()
        count, kind = len(values), values.dtype
        in_units = (values.astype(np.float64) - float(state.units.shift)) / float(state.units.scale)
        columns = (
            np.full(count, float(state.threshold), kind),
            interpolate_few(state.probability, in_units).astype(kind),
            np.full(count, seen < self.warmup),
        )
        pending = state.pending.numpy().copy()
        pending[waiting : waiting + count, 0] = values
        pending[waiting : waiting + count, 1] = clarity.numpy()
        seen_after, waiting_after, pending_after = map(
            torch.from_numpy, (np.array(seen + count), np.array(waiting + count), pending)
        )
        history = state._replace(seen=seen_after, waiting=waiting_after, pending=pending_after)
        return Decisions(*map(torch.from_numpy, columns)), history

    def _learn_in_ring(self, state: MarginHistory, margin: Float[Tensor, " T"]) -> tuple[Decisions, MarginHistory]:
        """What `learn` does where the units of margins are unknown: the latest ones are kept themselves."""
        decided, seen, stop = [], int(state.seen), int(state.seen) + len(margin)
        ends = self._updates(seen, stop)
        for start, end in pairwise(sorted({seen, *ends, stop})):
            some = margin[start - seen : end - seen]
            decided.append(self.read(state, some))
            ring = state.ring.index_copy(0, torch.arange(start, end) % self.window, some.double())
            state = state._replace(seen=torch.full_like(state.seen, end), ring=ring)
            state = self._updated(state) if end in ends else state
        return Decisions.joined(decided), state

    def _updated(self, state: MarginHistory) -> MarginHistory:
        if int(state.seen) < self.warmup:
            return state
        margins = state.ring[: int(state.seen)]
        units = Units.of(margins)
        at_nodes = counts(units.apply(margins))
        fit = fit_mixture(at_nodes, at_nodes, self.recall)
        threshold = fit.threshold * units.scale + units.shift
        return state._replace(units=units, threshold=threshold, probability=fit.probability)

    def _learn_counted(
        self,
        state: MarginHistory,
        margin: Float[Tensor, " T"],
        clarity: Float[Tensor, " T"],
        graph: LearningGraph | None,
    ) -> tuple[Decisions, MarginHistory]:
        """What `learn` does where margins are in known units: all of them are counted."""
        seen, columns, decided = int(state.seen), torch.stack([margin, clarity], dim=1), []
        steps = Steps(seen, self._updates(seen, seen + len(margin)), seen + len(margin))
        for part in steps.parts(UPDATES if graph else TOGETHER):
            some = columns[part.start - seen : part.stop - seen]
            found = graph.learn(state, some, part) if graph else learned_block(state, some, part, self.recall)
            decided.append(found.decided.to(margin.dtype))
            state = found.history
        threshold, p_known = torch.cat(decided, dim=1)
        bounds = np.array([seen, *steps.ends, steps.stop])
        warming = np.repeat(bounds[:-1] < self.warmup, np.diff(bounds))
        return Decisions(threshold, p_known, torch.from_numpy(warming)), state

    def _updates(self, seen: int, stop: int) -> list[int]:
        """After how many samples updates follow, from `seen` samples on up to `stop`."""
        found = []
        while (seen := seen + (interval := self._interval(seen)) - seen % interval) <= stop:
            found.append(seen)
        return found

    def _interval(self, seen: int) -> int:
        """How many samples lie between two updates: fewer at the start, where the units are known."""
        return min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.derives_baseline else self.every
