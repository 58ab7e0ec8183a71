"""Turn scores into verdicts: fixed, calibrated on known images, or adaptive from the unlabelled stream."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.mixture import known_line

S = TypeVar("S")


class Cuts(NamedTuple):
    """Where the line stood for each sample, and whether too little had been seen to draw one."""

    cut: Float[Tensor, " T"]
    warming: Bool[Tensor, " T"]


@dataclass(frozen=True)
class Threshold(ABC, Generic[S]):
    """A rule that draws the line between known and unknown from scores alone."""

    name: ClassVar[str]

    @abstractmethod
    def start(self) -> S:
        """Return the state before the first score."""

    @abstractmethod
    def line(self, state: S) -> float:
        """Return the score at and above which a sample is called known."""

    def warming(self, state: S) -> bool:
        """Say whether too little has been seen for the line to mean what it says."""
        return False

    def read(self, state: S, score: Float[Tensor, " T"]) -> Cuts:
        """Return the line as it stands, for every sample."""
        return Cuts(
            torch.full_like(score, self.line(state)), torch.full_like(score, self.warming(state), dtype=torch.bool)
        )

    def learn(self, state: S, score: Float[Tensor, " T"]) -> tuple[Cuts, S]:
        """Return the line each sample met, in arrival order, and the state after the last."""
        return self.read(state, score), state

    def suited(self, *, anchored: bool) -> Threshold[S]:
        """Return the rule for a detector whose zero margin is derived (`anchored`) or a mere convention."""
        return self

    @property
    def settings(self) -> dict[str, object]:
        """Return every option by name: what a checkpoint must agree on."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Fixed(Threshold[None]):
    """Known at or above one score; 0 is even odds."""

    cut: float = 0.0

    name: ClassVar[str] = "fixed"

    def start(self) -> None:
        """Return no state: the line never moves."""
        return

    def line(self, state: None) -> float:
        """Return the score that was fixed."""
        return self.cut


def calibrated(id_scores: Float[Tensor, " n"], *, recall: float = 0.95) -> Fixed:
    """Return the highest line that a new known image passes with probability at least `recall`.

    This is split conformal prediction: with n held-out scores of known images the k-th smallest, k = floor((n + 1)
    (1 - recall)), keeps the promise at every n, where the plain quantile breaks it slightly.
    """
    _recall(recall)
    n = len(id_scores)
    k = math.floor((n + 1) * (1 - recall) + 1e-9)  # the product of two decimals may fall just short of an integer
    if k < 1:
        least = math.ceil(1 / (1 - recall) - 1 - 1e-9)
        raise SettingError(
            f"expected at least {least} known scores for a recall of {recall:g}, got {n}; add known images"
        )
    return Fixed(float(id_scores.double().sort().values[k - 1]))


class Recent(NamedTuple):
    """The latest scores in a ring, how many were ever seen, and the line drawn from them."""

    ring: Float[Tensor, " W"]
    seen: Int[Tensor, ""]
    cut: Float[Tensor, ""]


@dataclass(frozen=True)
class Adaptive(Threshold[Recent]):
    """Draw the line from the stream, where it should keep a share `recall` of the known images.

    Where 0 is derived (`anchored`: a sample related to no name scores about 0), `modes.known_line` says where known
    images lie from the first sample on: from the later half of the stream, whenever it has grown by an eighth or less.
    Elsewhere only the scores themselves can say where the modes are: the line stays at even odds until `warmup` scores
    have been seen, then the upper of two fitted modes is kept, and a stream of one kind is split in two.

    The line moves at counts from the stream's start, at least every `every` samples, so cutting the stream differently
    into calls changes nothing. Verdicts before `warmup` scores say that the line is young.
    """

    recall: float = 0.95
    warmup: int = 128
    every: int = 64
    window: int = 4096
    anchored: bool = False  # set by the session from what the detector promises

    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        """Check the settings."""
        _recall(self.recall)
        if not 1 <= self.every <= self.window or not 2 <= self.warmup <= self.window:
            raise SettingError(
                f"expected 1 <= every <= window and 2 <= warmup <= window, got every={self.every}, "
                f"warmup={self.warmup}, window={self.window}; the defaults are a good start"
            )

    def start(self) -> Recent:
        """Return an empty ring and the line that needs no score: where known images usually lie, or even odds."""
        ring, zero = (torch.zeros(shape, dtype=torch.float64) for shape in ((self.window,), ()))
        return Recent(ring, zero.long(), known_line(ring[:0], self.recall) if self.anchored else zero)

    def suited(self, *, anchored: bool) -> Adaptive:
        """Return this rule, leaning on even odds where the detector derives them."""
        return replace(self, anchored=anchored)

    def line(self, state: Recent) -> float:
        """Return the line drawn last."""
        return float(state.cut)

    def warming(self, state: Recent) -> bool:
        """Say whether few scores have been seen yet."""
        return int(state.seen) < self.warmup

    def learn(self, state: Recent, score: Float[Tensor, " T"]) -> tuple[Cuts, Recent]:
        """Return the line each sample met and the state after the last: a sample meets the line drawn before it."""
        cuts, start = [self.read(state, score[:0])], 0
        while start < len(score):
            pace = self._pace(int(state.seen))
            stop = min(len(score), start + pace - int(state.seen) % pace)
            cuts.append(self.read(state, score[start:stop]))
            state = self._remember(state, score[start:stop])
            start = stop
        return Cuts(*(torch.cat(part) for part in zip(*cuts, strict=True))), state

    def _remember(self, state: Recent, score: Float[Tensor, " n"]) -> Recent:
        seen = state.seen + len(score)
        slots = torch.arange(int(state.seen), int(seen)) % self.window
        ring = state.ring.index_copy(0, slots, score.detach().cpu().double())
        if int(seen) % self._pace(int(state.seen)) or (int(seen) < self.warmup and not self.anchored):
            return Recent(ring, seen, state.cut)
        if not self.anchored:
            return Recent(ring, seen, upper_mode_cut(ring[: int(seen)], self.recall))
        latest = min(self.window, int(seen) - int(seen) // 2)  # what a detector says changes while it learns
        slots = torch.arange(int(seen) - latest, int(seen)) % self.window
        return Recent(ring, seen, known_line(ring[slots], self.recall))

    def _pace(self, seen: int) -> int:
        """Return how many samples lie between two lines: a young line moves more often, where it can."""
        return min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.anchored else self.every


class Mode(NamedTuple):
    """A normal with the mass of the samples it was fitted to."""

    mass: Float[Tensor, ""]
    mean: Float[Tensor, ""]
    variance: Float[Tensor, ""]

    @classmethod
    def of(cls, scores: Float[Tensor, " n"], weight: Float[Tensor, " n"]) -> Mode:
        """Return the weighted mean and variance, kept above a share of the whole so that no mode collapses."""
        mass = weight.sum().clamp(min=1e-9)
        mean = (weight * scores).sum() / mass
        variance = (weight * (scores - mean).square()).sum() / mass
        return cls(mass, mean, variance.clamp(min=1e-3 * scores.var() + 1e-12))

    def log_density(self, scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the log of the density times the mass, up to a constant."""
        return self.mass.log() - 0.5 * self.variance.log() - (scores - self.mean).square() / (2 * self.variance)


def upper_mode_cut(scores: Float[Tensor, " n"], recall: float) -> Float[Tensor, ""]:
    """Return the score that a share `recall` of the upper mode of two exceeds; of all scores when there is one mode."""
    weight = upper_mode(scores)
    ordered, order = scores.sort()
    mass = weight[order].cumsum(0)
    return ordered[torch.searchsorted(mass, (1 - recall) * mass[-1]).clamp(max=len(scores) - 1)]


def upper_mode(scores: Float[Tensor, " n"], *, rounds: int = 30) -> Float[Tensor, " n"]:
    """Return each score's probability of belonging to the upper of two normal modes (expectation maximisation)."""
    weight = (scores > scores.mean()).double()
    for _ in range(rounds):
        upper, lower = Mode.of(scores, weight), Mode.of(scores, 1 - weight)
        weight = torch.sigmoid(upper.log_density(scores) - lower.log_density(scores))
    return weight


def _recall(recall: float) -> None:
    if not 0 < recall < 1:
        raise SettingError(f"expected a recall between 0 and 1, got {recall!r}; 0.95 is customary")


REGISTRY: dict[str, type[Threshold[Any]]] = {kind.name: kind for kind in (Fixed, Adaptive)}
