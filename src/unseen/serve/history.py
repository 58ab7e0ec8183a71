"""What a person wants to see of a stream: recent scores, how it went over time, and whether it drifts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from unseen.verdicts import VERDICT_DTYPE, VerdictArray

RECENT = 2048  # samples in the histogram
POINTS = 400  # steps of the curves: when full, every other is dropped and the stride doubles
STRIDE = 16
DRIFTED = 1.95  # Kolmogorov-Smirnov: a difference this large has a chance of 1 in 1000 without drift


class Point(NamedTuple):
    """Shares over the samples since the point before."""

    seq: int
    known: float
    taught: float
    threshold: float


class History:
    """A bounded memory of verdicts. It starts empty after a restart: nothing learned depends on it."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._stride = STRIDE
        self._recent = np.empty(0, VERDICT_DTYPE)
        self._open = np.empty(0, VERDICT_DTYPE)

    def add(self, first: int, records: VerdictArray) -> None:
        """Remember the verdicts of consecutive samples, the first of them numbered `first`."""
        self._recent = np.concatenate([self._recent, records])[-RECENT:]
        self._open = np.concatenate([self._open, records])
        if len(self._open) < self._stride:
            return
        part, self._open = self._open, self._open[:0]
        shares = float(part["known"].mean()), float((part["route"] != 0).mean())
        self.points.append(Point(first + len(records), *shares, float(part["threshold"][-1])))
        if len(self.points) > POINTS:
            self.points, self._stride = self.points[1::2], 2 * self._stride

    @property
    def latest(self) -> VerdictArray:
        """Return what was said of the most recent samples, newest last."""
        return self._recent

    @property
    def margins(self) -> list[float]:
        """Return how far the latest scores were above the baseline, in order."""
        return [float(margin) for margin in self._recent["margin"] if math.isfinite(margin)]

    @property
    def drift(self) -> float:
        """Return how far the newer half of the recent scores is from the older, 1 where the alarm rings."""
        scores = self._recent["margin"]
        if len(scores) < 256:
            return 0.0
        older, newer = np.sort(scores[: len(scores) // 2]), np.sort(scores[len(scores) // 2 :])
        at = np.concatenate([older, newer])
        gap = np.searchsorted(older, at, "right") / len(older) - np.searchsorted(newer, at, "right") / len(newer)
        scale = math.sqrt(len(older) * len(newer) / len(scores))
        return float(np.abs(gap).max()) * scale / DRIFTED
