"""A threshold that follows the unlabelled stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.base import Decisions, ThresholdRule, check_recall
from unseen.threshold.mixture import recall_threshold


class RecentMargins(NamedTuple):
    """The latest margins in a ring buffer, how many were ever seen, and the threshold set from them."""

    ring: Float[Tensor, " W"]
    seen: Int[Tensor, ""]
    threshold: Float[Tensor, ""]


@dataclass(frozen=True)
class Adaptive(ThresholdRule[RecentMargins]):
    """Set the threshold from the stream so that it accepts a share `recall` of the known images.

    Where the detector derives its baseline (an image related to no name has a margin of about 0), the threshold is
    `mixture.recall_threshold` of the later half of the stream, from the first sample on, updated whenever the stream
    has grown by an eighth. Elsewhere the threshold is 0 until `warmup` margins have been seen; then it accepts a share
    `recall` of the upper of two fitted normal modes.

    Updates happen at sample counts from the start of the stream, at least every `every` samples, so the threshold does
    not depend on how the stream is split into calls. Decisions about the first `warmup` samples are marked as warming.
    """

    recall: float = 0.95
    warmup: int = 128
    every: int = 64
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

    def start(self) -> RecentMargins:
        """Return an empty ring and the threshold before any margin: that of the prior, or 0."""
        ring, zero = (torch.zeros(shape, dtype=torch.float64) for shape in ((self.window,), ()))
        threshold = recall_threshold(ring[:0], self.recall) if self.derives_baseline else zero
        return RecentMargins(ring, zero.long(), threshold)

    def for_detector(self, *, derives_baseline: bool) -> Adaptive:
        """Return this rule, using the prior on margins where the detector derives its baseline."""
        return replace(self, derives_baseline=derives_baseline)

    def threshold_of(self, state: RecentMargins) -> float:
        """Return the threshold set last."""
        return float(state.threshold)

    def is_warming(self, state: RecentMargins) -> bool:
        """Return whether fewer than `warmup` margins have been seen."""
        return int(state.seen) < self.warmup

    def learn(self, state: RecentMargins, margin: Float[Tensor, " T"]) -> tuple[Decisions, RecentMargins]:
        """Return the decision about each sample, under the threshold set before it, and the state after the last."""
        parts, start = [self.read(state, margin[:0])], 0
        while start < len(margin):
            interval = self._interval(int(state.seen))
            stop = min(len(margin), start + interval - int(state.seen) % interval)
            parts.append(self.read(state, margin[start:stop]))
            state = self._updated(state, margin[start:stop])
            start = stop
        return Decisions.joined(parts), state

    def _updated(self, state: RecentMargins, margin: Float[Tensor, " n"]) -> RecentMargins:
        seen = state.seen + len(margin)
        slots = torch.arange(int(state.seen), int(seen)) % self.window
        ring = state.ring.index_copy(0, slots, margin.detach().cpu().double())
        if int(seen) % self._interval(int(state.seen)):
            return RecentMargins(ring, seen, state.threshold)
        return RecentMargins(ring, seen, self._threshold(ring, int(seen), state.threshold))

    def _threshold(self, ring: Float[Tensor, " W"], seen: int, before: Float[Tensor, ""]) -> Float[Tensor, ""]:
        if self.derives_baseline:
            latest = min(self.window, seen - seen // 2)  # only the later half: margins change while a detector learns
            return recall_threshold(ring[torch.arange(seen - latest, seen) % self.window], self.recall)
        return before if seen < self.warmup else upper_mode_threshold(ring[:seen], self.recall)

    def _interval(self, seen: int) -> int:
        """Return how many samples lie between two updates: fewer at the start, where the baseline is derived."""
        return min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.derives_baseline else self.every


class Mode(NamedTuple):
    """A normal with the mass of the samples it was fitted to."""

    mass: Float[Tensor, ""]
    mean: Float[Tensor, ""]
    variance: Float[Tensor, ""]

    @classmethod
    def of(cls, margins: Float[Tensor, " n"], weight: Float[Tensor, " n"]) -> Mode:
        """Return the weighted mean and variance; the variance has a floor so that no mode collapses."""
        mass = weight.sum().clamp(min=1e-9)
        mean = (weight * margins).sum() / mass
        variance = (weight * (margins - mean).square()).sum() / mass
        return cls(mass, mean, variance.clamp(min=1e-3 * margins.var() + 1e-12))

    def log_density(self, margins: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the log of the density times the mass, up to a constant."""
        return self.mass.log() - 0.5 * self.variance.log() - (margins - self.mean).square() / (2 * self.variance)


def upper_mode_threshold(margins: Float[Tensor, " n"], recall: float) -> Float[Tensor, ""]:
    """Return the margin that a share `recall` of the upper of two modes reaches."""
    weight = upper_mode(margins)
    ordered, order = margins.sort()
    mass = weight[order].cumsum(0)
    return ordered[torch.searchsorted(mass, (1 - recall) * mass[-1]).clamp(max=len(margins) - 1)]


def upper_mode(margins: Float[Tensor, " n"], *, rounds: int = 30) -> Float[Tensor, " n"]:
    """Return each margin's probability of belonging to the upper of two normal modes (expectation maximisation)."""
    weight = (margins > margins.mean()).double()
    for _ in range(rounds):
        upper, lower = Mode.of(margins, weight), Mode.of(margins, 1 - weight)
        weight = torch.sigmoid(upper.log_density(margins) - lower.log_density(margins))
    return weight
