"""A threshold that follows the unlabelled stream, and what a person tells."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.labels import LabelSpace
from unseen.threshold.base import FOLLOWS, Corrected, Decisions, RecallInterval, ThresholdRule, check_recall
from unseen.threshold.mixture import GRID, PRIOR, Fit, Told, expected_known_mean, fit_mixture


class Units(NamedTuple):
    """How margins are brought to those that the prior of the mixture knows: (margin - shift) / scale."""

    shift: Float[Tensor, ""]
    scale: Float[Tensor, ""]

    @classmethod
    def nats(cls) -> Units:
        """The units of a detector whose margins are in nats."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def of(cls, margins: Float[Tensor, " n"]) -> Units:
        """Units in which these margins have the mean and the deviation of a stream with as many known as unknown."""
        mean, half = (PRIOR.known_mean + PRIOR.unknown_mean) / 2, (PRIOR.known_mean - PRIOR.unknown_mean) / 2
        deviation = math.hypot(half, (PRIOR.known_deviation + PRIOR.unknown_deviation) / 2)
        scale = margins.std().clamp(min=1e-6) / deviation
        return cls(margins.mean() - mean * scale, scale)

    def apply(self, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Margins in these units."""
        return (margin.double() - self.shift) / self.scale


class MarginHistory(NamedTuple):
    """What the stream has shown and a person has told, and what follows from both."""

    seen: Int[Tensor, ""]
    counts: Float[Tensor, " N"]  # of margins at the places of the grid
    recent: Float[Tensor, " N"]  # the same, earlier ones with less weight
    waiting: Int[Tensor, ""]  # how many margins came since the last update
    pending: Float[Tensor, " W"]  # these margins; where units are unknown a ring of the latest
    told: Told
    units: Units
    fit: Fit


@dataclass(frozen=True)
class Adaptive(ThresholdRule[MarginHistory]):
    """Set the threshold so that it accepts a share `recall` of the known images: by the stream, and by what is told.

    Where margins are in nats, `mixture.fit_mixture` gives the threshold from the first image on. Elsewhere the units of
    a margin are unknown: the threshold is 0 until `warmup` margins have been seen, then the mixture is fitted to the
    latest `window` margins, brought to the mean and deviation of a typical stream. That promises no recall.

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
    in_nats: bool = False  # set by the session from the detector
    known_mean: float = field(default=PRIOR.known_mean, compare=False, metadata=FOLLOWS)  # expected, by the label space

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
        empty = torch.zeros(GRID.size, dtype=torch.float64)
        fit = fit_mixture(empty, empty, Told.none(), self.recall, known_mean=self.known_mean)
        if not self.in_nats:
            fit = fit._replace(threshold=torch.zeros_like(fit.threshold))
        pending = torch.zeros(self.every if self.in_nats else self.window, dtype=torch.float64)
        return MarginHistory(torch.tensor(0), empty, empty, torch.tensor(0), pending, Told.none(), Units.nats(), fit)

    def for_detector(self, labels: LabelSpace, *, in_nats: bool) -> Adaptive:
        """This rule for a detector of these names, whose margins are in nats or are not."""
        known_mean = expected_known_mean(labels) if in_nats else PRIOR.known_mean
        return replace(self, in_nats=in_nats, known_mean=known_mean)

    def threshold_of(self, state: MarginHistory) -> float:
        return float(state.fit.threshold)

    def recall_interval(self, state: MarginHistory) -> RecallInterval | None:
        """Where the share of known images that is kept lies, if the units of margins are known."""
        return RecallInterval(*state.fit.recall.tolist()) if self.in_nats else None

    def is_warming(self, state: MarginHistory) -> bool:
        return int(state.seen) < self.warmup

    def p_known(self, state: MarginHistory, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The probability that each sample is known, from the mixture."""
        if not self.in_nats and self.is_warming(state):
            return torch.sigmoid(margin)
        return GRID.interpolate(state.fit.p_known, state.units.apply(margin.detach().cpu())).to(margin)

    def learn(self, state: MarginHistory, margin: Float[Tensor, " T"]) -> tuple[Decisions, MarginHistory]:
        """The decision about each sample, under the threshold set before it, and the state after the last."""
        margin, decided, start = margin.detach().cpu(), list[Decisions](), 0
        while start < len(margin) or not decided:
            rows = slice(start, start + self._until_update(int(state.seen)))
            decided.append(self.read(state, margin[rows]))
            state = self._learned(state, margin[rows].double())
            start = rows.stop
        return Decisions.joined(decided), state

    def told(self, state: MarginHistory, photos: Float[Tensor, " n"], corrected: Corrected) -> MarginHistory:
        """The state after a person has told which images are known; these take the place of those told before."""
        margins = photos, corrected.margin[corrected.known], corrected.margin[~corrected.known]
        told = Told(*(GRID.counts(state.units.apply(margin.detach().cpu())) for margin in margins))
        return self.fitted(state._replace(told=told))

    def judged_again(self, state: MarginHistory, before: MarginHistory, margin: Float[Tensor, " n"]) -> MarginHistory:
        """The state in which `margin` are those of the images that came after `before`.

        They are judged together, so that the share of known images among them counts, not that among the latest.
        """
        if not self.in_nats:
            return state
        margin = torch.cat([before.pending[: int(before.waiting)], margin.detach().cpu().double()])
        found, waiting = GRID.counts(margin), torch.zeros_like(state.waiting)
        recent = found * min(1.0, PRIOR.recent / len(margin)) if len(margin) else before.recent
        return self.fitted(state._replace(counts=before.counts + found, recent=recent, waiting=waiting))

    def taken_over(self, state: MarginHistory | None) -> MarginHistory:
        """A state that follows from what another such rule has counted, if its units are known or it is alike."""
        start = self.start()
        if state is None or (state.pending.shape != start.pending.shape and not self.in_nats):
            return start
        if state.pending.shape != start.pending.shape:  # what waits is counted now
            margin = state.pending[: int(state.waiting)]
            counts, recent = state.counts + GRID.counts(margin), followed_by(state.recent, margin)
            state = state._replace(counts=counts, recent=recent, waiting=start.waiting, pending=start.pending)
        return self.fitted(state)

    def moved(self, state: MarginHistory, by: float) -> MarginHistory:
        """The state in which all margins were higher by so many nats."""
        if not self.in_nats:
            return state
        counts, recent = (GRID.counts(GRID.margins + by, weight) for weight in (state.counts, state.recent))
        return self.fitted(state._replace(counts=counts, recent=recent, pending=state.pending + by))

    def _learned(self, state: MarginHistory, margin: Float[Tensor, " n"]) -> MarginHistory:
        """The state after samples that come before the next update, or complete it."""
        is_due = len(margin) == self._until_update(int(state.seen))
        first = int(state.waiting if self.in_nats else state.seen)
        places = torch.arange(first, first + len(margin)) % len(state.pending)
        pending, count = state.pending.index_copy(0, places, margin), len(margin)
        state = state._replace(seen=state.seen + count, waiting=state.waiting + count, pending=pending)
        if not is_due or (not self.in_nats and self.is_warming(state)):
            return state
        counted = self._counted(state, pending[: first + count])
        return counted._replace(waiting=torch.zeros_like(state.waiting))

    def _counted(self, state: MarginHistory, margin: Float[Tensor, " n"]) -> MarginHistory:
        """The state that has counted the margins that were pending, or those in the ring."""
        if not self.in_nats:
            units = Units.of(margin)
            counts = GRID.counts(units.apply(margin))
            return self.fitted(state._replace(units=units, counts=counts, recent=counts))
        counts, recent = state.counts + GRID.counts(margin), followed_by(state.recent, margin)
        return self.fitted(state._replace(counts=counts, recent=recent))

    def fitted(self, state: MarginHistory) -> MarginHistory:
        """The state with what follows from its counts."""
        seen, units = (state.counts, state.recent, state.told), state.units
        fit = fit_mixture(*seen, self.recall, known_mean=self.known_mean)
        return state._replace(fit=fit._replace(threshold=fit.threshold * units.scale + units.shift))

    def _until_update(self, seen: int) -> int:
        """How many samples may come before the next update, or before the threshold is reliable."""
        until = self._interval(seen) - seen % self._interval(seen)
        return min(until, self.warmup - seen) if seen < self.warmup else until

    def _interval(self, seen: int) -> int:
        """How many samples lie between updates: fewer at the start, where the units are known."""
        return min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.in_nats else self.every


def followed_by(recent: Float[Tensor, " N"], margin: Float[Tensor, " n"]) -> Float[Tensor, " N"]:
    """The counts of recent margins after some more."""
    age = torch.arange(len(margin) - 1, -1, -1, dtype=torch.float64)
    return recent * math.exp(-len(margin) / PRIOR.recent) + GRID.counts(margin, (-age / PRIOR.recent).exp())
