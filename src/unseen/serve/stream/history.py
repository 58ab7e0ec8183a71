"""What a page shows of a stream: recent margins, shares over time, whether the margins drift, and thumbnails."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from unseen.serve.stream.watch import UnknownWatch
from unseen.verdicts import VERDICT_DTYPE, VerdictArray

RECENT = 2048  # samples in the histogram
POINTS = 400  # points of the curves: when full, every other is dropped and the stride doubles
STRIDE = 16
THUMBNAILS = 256  # kept in memory
DRIFTED = 1.95  # Kolmogorov-Smirnov: a difference this large has a chance of 1 in 1000 without drift


T = TypeVar("T")


class Point(NamedTuple):
    """Shares over the samples since the point before, and the threshold at its end."""

    seq: int
    known: float
    taught: float
    threshold: float


class RecentVerdicts(NamedTuple):
    """Verdicts of consecutive samples, numbered from `first`."""

    first: int
    verdicts: VerdictArray

    def after(self, seq: int) -> "RecentVerdicts":
        """Return the verdicts of samples after number `seq`."""
        skipped = min(max(0, seq + 1 - self.first), len(self.verdicts))
        return RecentVerdicts(self.first + skipped, self.verdicts[skipped:])


class History:
    """A bounded memory of verdicts. It starts empty after a restart: nothing learned depends on it."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.watch = UnknownWatch()
        self._stride = STRIDE
        self.recent = RecentVerdicts(0, np.empty(0, VERDICT_DTYPE))  # replaced whole: others read it meanwhile
        self._since_point = np.empty(0, VERDICT_DTYPE)

    def add(self, first: int, verdicts: VerdictArray) -> None:
        """Remember the verdicts of consecutive samples, the first of them numbered `first`."""
        kept = np.concatenate([self.recent.verdicts, verdicts])[-RECENT:]
        self.recent = RecentVerdicts(first + len(verdicts) - len(kept), kept)
        self._since_point = np.concatenate([self._since_point, verdicts])
        self.watch.add(first, verdicts)
        if len(self._since_point) < self._stride:
            return
        part, self._since_point = self._since_point, self._since_point[:0]
        shares = float(part["known"].mean()), float((part["route"] != 0).mean())
        self.points.append(Point(first + len(verdicts), *shares, float(part["threshold"][-1])))
        if len(self.points) > POINTS:
            self.points, self._stride = self.points[1::2], 2 * self._stride

    @property
    def margins(self) -> list[float]:
        """Return the finite margins of the recent samples, in order."""
        return [float(margin) for margin in self.recent.verdicts["margin"] if math.isfinite(margin)]

    @property
    def drift(self) -> float:
        """Return how far the newer half of the recent margins is from the older; 1 and above is an alarm."""
        margins = self.recent.verdicts["margin"]
        if len(margins) < 256:
            return 0.0
        older, newer = np.sort(margins[: len(margins) // 2]), np.sort(margins[len(margins) // 2 :])
        at = np.concatenate([older, newer])
        gap = np.searchsorted(older, at, "right") / len(older) - np.searchsorted(newer, at, "right") / len(newer)
        scale = math.sqrt(len(older) * len(newer) / len(margins))
        return float(np.abs(gap).max()) * scale / DRIFTED


class RecentItems(Generic[T]):
    """What came with recent samples, by sequence number; the oldest make room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[int, T] = OrderedDict()

    def add(self, first: int, items: Sequence[T]) -> None:
        """Keep what came with consecutive samples."""
        self._kept.update(enumerate(items, first))
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, seq: int) -> T | None:
        """Return what came with a sample, None where it is not kept."""
        return self._kept.get(seq)

    def __contains__(self, seq: object) -> bool:
        return seq in self._kept
