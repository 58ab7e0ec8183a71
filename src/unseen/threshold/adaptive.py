"""A threshold that follows the unlabelled stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.base import Decisions, ThresholdRule, check_recall
from unseen.threshold.clear import ClearImages
from unseen.threshold.mixture import NODES, counts, fit_mixture, interpolate, interpolate_few

RECENT = 512.0  # samples after which a margin counts 1 / e for the present share of known images
TOGETHER = 32  # updates that are fitted in one pass over the hypotheses
TYPICAL_MEAN, TYPICAL_DEVIATION = 3.0, 7.0  # of the margins of a mixed stream, in the units that the mixtures know


class Units(NamedTuple):
    """How margins are carried into the units that the mixtures know: (margin - shift) / scale."""

    shift: Float[Tensor, ""]
    scale: Float[Tensor, ""]

    @classmethod
    def nats(cls) -> Units:
        """Return the units of a detector that derives its baseline."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def of(cls, margins: Float[Tensor, " n"]) -> Units:
        """Return units in which these margins have the mean and the deviation of a typical stream."""
        scale = margins.std().clamp(min=1e-6) / TYPICAL_DEVIATION
        return cls(margins.mean() - TYPICAL_MEAN * scale, scale)

    def apply(self, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return margins in these units."""
        return (margin.detach().cpu().double() - self.shift) / self.scale


class MarginHistory(NamedTuple):
    """What the stream has shown, and what follows from it."""

    seen: Int[Tensor, ""]
    counts: Float[Tensor, " N"]  # of margins at the nodes of the mixtures, each times its place in the stream
    recent: Float[Tensor, " N"]  # the same, of the latest few hundred: for the share of known images
    clear: ClearImages
    ring: Float[Tensor, " W"]  # the latest margins, where their units are not known; else empty
    waiting: Int[Tensor, ""]  # how many margins came since the last update and are in no other sum
    pending: Float[Tensor, "E 2"]  # those margins, and the clarity of their images; empty where there is a ring
    units: Units
    threshold: Float[Tensor, ""]  # in nats of the detector
    probability: Float[Tensor, " N"]  # that an image is known, at each node


class Step(NamedTuple):
    """Margins between two updates, and the history after them."""

    margin: Float[Tensor, " n"]
    history: MarginHistory
    is_due: bool  # whether an update follows


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
        """Return an empty history and what the prior says, or a threshold of 0."""
        empty, zero = torch.zeros(NODES, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        ring = torch.zeros(0 if self.derives_baseline else self.window, dtype=torch.float64)
        pending = torch.zeros(self.every if self.derives_baseline else 0, 2, dtype=torch.float64)
        fit = fit_mixture(empty, empty, self.recall)
        threshold = fit.threshold if self.derives_baseline else zero
        start = zero.long(), empty, empty, ClearImages.none(), ring, zero.long(), pending, Units.nats()
        return MarginHistory(*start, threshold, fit.probability)

    def for_detector(self, *, derives_baseline: bool) -> Adaptive:
        """Return this rule, with margins in known units where the detector derives its baseline."""
        return replace(self, derives_baseline=derives_baseline)

    def threshold_of(self, state: MarginHistory) -> float:
        return float(state.threshold)

    def is_warming(self, state: MarginHistory) -> bool:
        return int(state.seen) < self.warmup

    def confidence(self, state: MarginHistory, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return the probability that each sample is known, from the fitted mixtures."""
        if not self.derives_baseline and self.is_warming(state):
            return torch.sigmoid(margin)
        return interpolate(state.probability, state.units.apply(margin)).to(margin)

    def learn(
        self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"] | None = None
    ) -> tuple[Decisions, MarginHistory]:
        """Return the decision about each sample, under the threshold set before it, and the state after the last.

        Thresholds are fitted where margins are; decisions and state are in host memory.
        """
        if not len(margin):
            return self.read(state, margin), state
        clarity = torch.full_like(margin, -torch.inf) if clarity is None else clarity
        if self._wait(state, len(margin)) and not margin.is_cuda:
            return self._learn_waiting(state, margin, clarity)
        steps = list(self._steps(state, margin, clarity))
        updates = iter(self._updates([step.history for step in steps if step.is_due], margin.device))
        parts = []
        for step in steps:
            parts.append(self.read(state, step.margin))
            history = step.history._replace(units=state.units, threshold=state.threshold, probability=state.probability)
            state = next(updates) if step.is_due else history
        return Decisions.joined(parts), state

    def _wait(self, state: MarginHistory, count: int) -> bool:
        """Return whether the next `count` margins wait for an update."""
        seen = int(state.seen)
        interval = self._interval(seen)
        return self.derives_baseline and seen % interval + count < interval

    def _learn_waiting(
        self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"]
    ) -> tuple[Decisions, MarginHistory]:
        """Return what `learn` does for margins that wait, in a fifth of the time: by NumPy."""
        seen, waiting, values = int(state.seen), int(state.waiting), margin.detach().numpy()
        count, kind = len(values), values.dtype
        in_units = (values.astype(np.float64) - float(state.units.shift)) / float(state.units.scale)
        columns = (
            np.full(count, float(state.threshold), kind),
            interpolate_few(state.probability, in_units).astype(kind),
            np.full(count, seen < self.warmup),
        )
        pending = state.pending.numpy().copy()
        pending[waiting : waiting + count, 0] = values
        pending[waiting : waiting + count, 1] = clarity.detach().numpy()
        seen_after, waiting_after, pending_after = map(
            torch.from_numpy, (np.array(seen + count), np.array(waiting + count), pending)
        )
        history = state._replace(seen=seen_after, waiting=waiting_after, pending=pending_after)
        return Decisions(*map(torch.from_numpy, columns)), history

    def _steps(self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"]) -> Iterator[Step]:
        """Yield the margins between updates: what is remembered of them does not depend on any threshold."""
        start, seen = 0, int(state.seen)
        columns = torch.stack([column.detach().double() for column in (margin, clarity)], dim=1).cpu()
        margin = margin.detach().cpu()
        while start < len(columns):
            interval = self._interval(seen)
            rows = slice(start, start + interval - seen % interval)
            start, seen = rows.stop, seen + len(columns[rows])
            is_due = seen % interval == 0
            state = self._remembered(state, columns[rows], seen, is_due=is_due)
            yield Step(margin[rows], state, is_due)

    def _remembered(
        self, state: MarginHistory, columns: Float[Tensor, "n 2"], seen: int, *, is_due: bool
    ) -> MarginHistory:
        """Return the state after margins and clarities, with which `seen` samples have been seen."""
        count = torch.full_like(state.seen, seen)
        if not self.derives_baseline:
            slots = torch.arange(seen - len(columns), seen) % self.window
            return state._replace(seen=count, ring=state.ring.index_copy(0, slots, columns[:, 0]))
        waiting = int(state.waiting)
        if is_due:
            return self._counted(state._replace(seen=count), torch.cat([state.pending[:waiting], columns]))
        pending = state.pending.clone()
        pending[waiting : waiting + len(columns)] = columns
        return state._replace(seen=count, waiting=state.waiting + len(columns), pending=pending)

    def _counted(self, state: MarginHistory, columns: Float[Tensor, "n 2"]) -> MarginHistory:
        """Return the state with everything since the last update in its sums: so they depend on no division."""
        (margin, clarity), seen = columns.T.contiguous(), int(state.seen)
        number = torch.arange(seen - len(margin) + 1, seen + 1, dtype=torch.float64)
        gained = counts(margin, torch.stack([number, ((number - seen) / RECENT).exp()]))
        return state._replace(
            counts=state.counts + gained[0],
            recent=state.recent * math.exp(-len(margin) / RECENT) + gained[1],
            clear=state.clear.after(margin, clarity, number),
            waiting=torch.zeros_like(state.waiting),
            pending=torch.zeros_like(state.pending),
        )

    def _updates(self, histories: list[MarginHistory], device: torch.device) -> Iterator[MarginHistory]:
        """Yield each history with the threshold and the probabilities that follow from it."""
        if not self.derives_baseline:
            yield from map(self._updated, histories)
            return
        for start in range(0, len(histories), TOGETHER):
            some = histories[start : start + TOGETHER]
            at_nodes = torch.stack([one.counts / one.seen for one in some]).to(device)
            clear = ClearImages.stacked([one.clear for one in some]).to(device)
            fit = fit_mixture(at_nodes, torch.stack([one.recent for one in some]), self.recall, clear)
            for one, threshold, probability in zip(some, *fit, strict=True):
                yield one._replace(threshold=threshold, probability=probability)

    def _updated(self, state: MarginHistory) -> MarginHistory:
        if int(state.seen) < self.warmup:
            return state
        margins = state.ring[: int(state.seen)]
        units = Units.of(margins)
        at_nodes = counts(units.apply(margins))
        fit = fit_mixture(at_nodes, at_nodes, self.recall)
        threshold = fit.threshold * units.scale + units.shift
        return state._replace(units=units, threshold=threshold, probability=fit.probability)

    def _interval(self, seen: int) -> int:
        """Return how many samples lie between two updates: fewer at the start, where the units are known."""
        return min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.derives_baseline else self.every
