"""What a page shows of a stream: recent margins, whether they drift, and thumbnails."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Sized
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from unseen.serve.stream.unknown_alarm import UnknownAlarm
from unseen.verdicts import VERDICT_DTYPE, VerdictArray

RECENT = 2048  # samples in the histogram
SETTLED = 1000  # samples after which a detector has learned most
THUMBNAILS = 256  # of the latest samples, kept in memory
UNKNOWN_THUMBNAILS = 512  # of the latest unknown samples, for groups
THUMBNAIL = 4096  # bytes; where they take more on average, fewer are kept
KEY_CHARACTERS = 1 << 18  # of what callers call the recent samples
DRIFTED = 1.95  # Kolmogorov-Smirnov: a difference this large has a chance of 1 in 1000 without drift


T = TypeVar("T")


class RecentVerdicts(NamedTuple):
    """Verdicts of consecutive samples, numbered from `first`."""

    first: int
    verdicts: VerdictArray

    def after(self, seq: int) -> "RecentVerdicts":
        """The verdicts of samples after number `seq`."""
        skipped = min(max(0, seq + 1 - self.first), len(self.verdicts))
        return RecentVerdicts(self.first + skipped, self.verdicts[skipped:])


class History:
    """A bounded memory of verdicts. It starts empty after a restart: nothing learned depends on it."""

    def __init__(self, seen: int = 0) -> None:
        """Begin when the session has seen so many samples."""
        self._settling = max(0, SETTLED - seen)  # samples to come whose margins still move because it learns
        self._settled_at: int | None = None  # the number of the first sample after those
        self.watch = UnknownAlarm()
        self.growing: list[int] = []  # numbers of groups that grew fast when samples were last grouped
        self.recent = RecentVerdicts(0, np.empty(0, VERDICT_DTYPE))
        self._room = self.recent.verdicts  # whose rows are written once: `recent` is the last of them
        self._filled = 0  # rows of it

    def add(self, first: int, verdicts: VerdictArray) -> None:
        """Remember the verdicts of consecutive samples, the first of them numbered `first`."""
        if self._settled_at is None:
            self._settled_at = first + self._settling
        self._keep(first + len(verdicts), verdicts[-RECENT:])
        self.watch.add(first, verdicts)

    def _keep(self, after: int, verdicts: VerdictArray) -> None:
        """Keep verdicts, the last of them before number `after`, and let go of the oldest.

        To join 2,048 single samples whenever they are asked for holds the interpreter for milliseconds.
        """
        if self._filled + len(verdicts) > len(self._room):
            held = self.recent.verdicts[max(0, len(self.recent.verdicts) + len(verdicts) - RECENT) :]
            self._room = np.empty(max(64, 2 * (len(held) + len(verdicts))), VERDICT_DTYPE)
            self._room[: len(held)], self._filled = held, len(held)
        self._room[self._filled : self._filled + len(verdicts)] = verdicts
        self._filled += len(verdicts)
        kept = self._room[max(0, self._filled - RECENT) : self._filled]
        self.recent = RecentVerdicts(after - len(kept), kept)

    @property
    def margins(self) -> list[float]:
        """The finite margins of the recent samples, in order."""
        margins = self.recent.verdicts["margin"]
        found: list[float] = margins[np.isfinite(margins)].tolist()
        return found

    @property
    def drift(self) -> float:
        """How far the newer half of the recent margins is from the older; 1 and above is an alarm.

        The first SETTLED samples of a stream do not count: their margins move because the detector learns.
        """
        margins = self.recent.after((self._settled_at or 0) - 1).verdicts["margin"]
        if len(margins) < 256:
            return 0.0
        older, newer = np.sort(margins[: len(margins) // 2]), np.sort(margins[len(margins) // 2 :])
        at = np.concatenate([older, newer])
        gap = np.searchsorted(older, at, "right") / len(older) - np.searchsorted(newer, at, "right") / len(newer)
        scale = math.sqrt(len(older) * len(newer) / len(margins))
        return float(np.abs(gap).max()) * scale / DRIFTED


def _length(item: object) -> int:
    return len(item) if isinstance(item, Sized) else 0


class RecentItems(Generic[T]):
    """What came with recent samples, by sequence number; the oldest make room: `most` stay, of `size` in all."""

    def __init__(self, most: int, size: int) -> None:
        self._most, self._room = most, size
        self._kept: OrderedDict[int, T] = OrderedDict()

    def add(self, first: int, items: Sequence[T]) -> None:
        """Keep what came with consecutive samples."""
        self.add_some(dict(enumerate(items, first)))

    def add_some(self, items: Mapping[int, T]) -> None:
        """Keep what came with samples that need not be consecutive."""
        self._kept.update(items)
        self._room -= sum(map(_length, items.values()))
        while len(self._kept) > self._most or self._room < 0:
            self._room += _length(self._kept.popitem(last=False)[1])

    def get(self, seq: int) -> T | None:
        """What came with a sample, None where it is not kept."""
        return self._kept.get(seq)

    def __contains__(self, seq: object) -> bool:
        return seq in self._kept
