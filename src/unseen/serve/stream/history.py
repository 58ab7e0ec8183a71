"""What a stream remembers of its verdicts: the recent ones, whether margins drift, and an alarm."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from unseen.alarm import UnknownRateAlarm, allowed_rate
from unseen.serve.settings import PAGE
from unseen.serve.stream.batch import BatchVerdicts

T = TypeVar("T")


class History:
    """A bounded memory of verdicts. It starts empty after a restart: nothing learned depends on it."""

    def __init__(self, seen: int = 0) -> None:
        """Begin when the session has seen so many samples."""
        self._settling = max(0, PAGE.settled - seen)  # samples to come whose margins still move because it learns
        self._settled_at: int | None = None  # the number of the first sample after those
        self.watch = UnknownAlarm()
        self._blocks: deque[BatchVerdicts] = deque()  # each with the names it was judged by

    def add(self, block: BatchVerdicts) -> None:
        """Remember the verdicts of consecutive samples, and let go of the oldest."""
        if self._settled_at is None:
            self._settled_at = block.first + self._settling
        self._blocks.append(block)
        while len(self._blocks) > 1 and block.after - self._blocks[1].first >= PAGE.recent:
            self._blocks.popleft()
        self.watch.add(block)

    def recent(self, after: int = -1) -> list[BatchVerdicts]:
        """The verdicts that are kept of samples after a number, in parts that were judged by the same names."""
        blocks = list(self._blocks)
        start = max(after + 1, blocks[-1].after - PAGE.recent) if blocks else 0
        return [block.part(start) for block in blocks if block.after > start]

    def margins(self, after: int = -1) -> list[float]:
        """The finite margins of the recent samples, in order."""
        parts = [block.verdicts["margin"] for block in self.recent(after)]
        margins = np.concatenate(parts) if parts else np.empty(0)
        found: list[float] = margins[np.isfinite(margins)].tolist()
        return found

    @property
    def drift(self) -> float:
        """How far the newer half of the recent margins is from the older; 1 and above is an alarm.

        The first samples of a stream do not count: their margins move because the detector learns.
        """
        margins = self.margins(after=(self._settled_at or 0) - 1)
        if len(margins) < PAGE.recent // 8:
            return 0.0
        older, newer = np.sort(margins[: len(margins) // 2]), np.sort(margins[len(margins) // 2 :])
        at = np.concatenate([older, newer])
        gap = np.searchsorted(older, at, "right") / len(older) - np.searchsorted(newer, at, "right") / len(newer)
        scale = math.sqrt(len(older) * len(newer) / len(margins))
        return float(np.abs(gap).max()) * scale / 1.95  # Kolmogorov-Smirnov: one in 1000 is larger without drift


class UnknownAlarm:
    """An alarm on the unknown rate of a stream; samples judged by a threshold that warms up do not count.

    `allowed` is the rate that is no cause for alarm; without it, a bound of the rate of the first reliable samples.
    """

    def __init__(self, allowed: float | None = None) -> None:
        self.rule = None if allowed is None else UnknownRateAlarm(allowed)
        self.state = self.rule.start() if self.rule else None
        self.raised_at: int | None = None  # the number of the sample that raised the alarm
        self._unknown = self._seen = 0

    def add(self, block: BatchVerdicts) -> None:
        """Take in the verdicts of consecutive samples."""
        places = np.flatnonzero(~block.verdicts["warming"])
        unknown = ~block.verdicts["known"][places]
        if self.rule is None or self.state is None:
            self._seen, self._unknown = self._seen + len(unknown), self._unknown + int(unknown.sum())
            if self._seen >= 1000:
                self.rule = UnknownRateAlarm(max(0.01, allowed_rate(self._unknown, self._seen)))
                self.state = self.rule.start()
            return
        before = self.state.seen
        self.state = self.rule.update(self.state, unknown)
        if self.raised_at is None and self.state.raised_at is not None:
            self.raised_at = block.first + int(places[self.state.raised_at - before])

    def shown(self) -> dict[str, Any]:
        """What a caller sees of the alarm."""
        rule = self.rule or UnknownRateAlarm()
        return {
            "allowed": self.rule.allowed if self.rule else None,
            "between": rule.between,
            "evidence": rule.share(self.state) if self.state else 0.0,
            "raised_at": self.raised_at,
        }


class RecentItems(Generic[T]):
    """What came with recent samples, by number or key; the oldest make room: `most` stay, of `size` in all."""

    def __init__(self, most: int, size: int) -> None:
        self._most, self._room = most, size
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def add(self, items: Mapping[Any, T]) -> None:
        """Keep what came with samples."""
        self._kept.update(items)
        self._room -= sum(map(_length, items.values()))
        while len(self._kept) > self._most or self._room < 0:
            self._room += _length(self._kept.popitem(last=False)[1])

    def get(self, key: Hashable) -> T | None:
        """What came with a sample, None where it is not kept."""
        return self._kept.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._kept


def _length(item: object) -> int:
    return len(item) if isinstance(item, Sized) else 0
