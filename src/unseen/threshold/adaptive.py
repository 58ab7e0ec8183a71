"""A threshold that follows the unlabelled stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.base import Decisions, ThresholdRule, check_recall
from unseen.threshold.clear import ClearImages
from unseen.threshold.mixture import NODES, counts, fit_mixture, interpolate

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
        fit = fit_mixture(empty, empty, self.recall)
        threshold = fit.threshold if self.derives_baseline else zero
        clear = ClearImages.none()
        return MarginHistory(zero.long(), empty, empty, clear, ring, Units.nats(), threshold, fit.probability)

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
        """Return the decision about each sample, under the threshold set before it, and the state after the last."""
        if not len(margin):
            return self.read(state, margin), state
        clarity = torch.full_like(margin, -torch.inf) if clarity is None else clarity
        steps = list(self._steps(state, margin, clarity))
        updates = iter(self._updates([step.history for step in steps if step.is_due]))
        parts = []
        for step in steps:
            parts.append(self.read(state, step.margin))
            history = step.history._replace(units=state.units, threshold=state.threshold, probability=state.probability)
            state = next(updates) if step.is_due else history
        return Decisions.joined(parts), state

    def _steps(self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"]) -> Iterator[Step]:
        """Yield the margins between updates: what is remembered of them does not depend on any threshold."""
        start, seen = 0, int(state.seen)
        on_host, clarity = (column.detach().cpu().double() for column in (margin, clarity))
        while start < len(margin):
            interval = self._interval(seen)
            rows = slice(start, start + interval - seen % interval)
            start, seen = rows.stop, seen + len(margin[rows])
            state = self._remembered(state, on_host[rows], clarity[rows], seen)
            yield Step(margin[rows], state, seen % interval == 0)

    def _remembered(
        self, state: MarginHistory, margin: Float[Tensor, " n"], clarity: Float[Tensor, " n"], seen: int
    ) -> MarginHistory:
        """Return the state after margins, with which `seen` samples have been seen."""
        count = torch.full_like(state.seen, seen)
        if not self.derives_baseline:
            slots = torch.arange(seen - len(margin), seen) % self.window
            return state._replace(seen=count, ring=state.ring.index_copy(0, slots, margin))
        number = torch.arange(seen - len(margin) + 1, seen + 1, dtype=torch.float64)
        gained = counts(margin, torch.stack([number, ((number - seen) / RECENT).exp()]))
        recent = state.recent * math.exp(-len(margin) / RECENT) + gained[1]
        clear = state.clear.after(margin, clarity, number)
        return state._replace(seen=count, counts=state.counts + gained[0], recent=recent, clear=clear)

    def _updates(self, histories: list[MarginHistory]) -> Iterator[MarginHistory]:
        """Yield each history with the threshold and the probabilities that follow from it."""
        if not self.derives_baseline:
            yield from map(self._updated, histories)
            return
        for start in range(0, len(histories), TOGETHER):
            some = histories[start : start + TOGETHER]
            at_nodes = torch.stack([one.counts / one.seen for one in some])
            clear = ClearImages.stacked([one.clear for one in some])
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
