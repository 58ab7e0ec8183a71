"""The alarm of a stream: it learns how many of its samples are unknown, then watches whether more are."""

from typing import Any

import numpy as np

from unseen.alarm import UnknownRateAlarm, allowed_rate
from unseen.verdicts import VerdictArray

REFERENCE = 1000  # samples from which the usual rate is learned, once the threshold is reliable


class UnknownAlarm:
    """An alarm on the unknown rate of a stream; samples judged by a threshold that warms up do not count.

    `allowed` is the rate that is no cause for alarm; without it, a bound of the rate of the first REFERENCE samples.
    """

    def __init__(self, allowed: float | None = None) -> None:
        self.rule = None if allowed is None else UnknownRateAlarm(allowed)
        self.state = self.rule.start() if self.rule else None
        self.raised_at: int | None = None  # the number of the sample that raised the alarm
        self._unknown = self._seen = 0

    def add(self, first: int, verdicts: VerdictArray) -> None:
        """Take in the verdicts of consecutive samples, the first of them numbered `first`."""
        places = np.flatnonzero(~verdicts["warming"])
        unknown = ~verdicts["known"][places]
        if self.rule is None or self.state is None:
            self._learn(unknown)
            return
        before = self.state.seen
        self.state = self.rule.update(self.state, unknown)
        if self.raised_at is None and self.state.raised_at is not None:
            self.raised_at = first + int(places[self.state.raised_at - before])

    def shown(self) -> dict[str, Any]:
        """What a caller sees of the alarm."""
        is_watching = self.rule is not None and self.state is not None
        return {
            "allowed": self.rule.allowed if self.rule else None,
            "between": self.rule.between if self.rule else UnknownRateAlarm().between,
            "evidence": self.rule.share(self.state) if is_watching and self.rule and self.state else 0.0,
            "raised_at": self.raised_at,
        }

    def _learn(self, unknown: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        self._seen, self._unknown = self._seen + len(unknown), self._unknown + int(unknown.sum())
        if self._seen >= REFERENCE:
            self.rule = UnknownRateAlarm(max(0.01, allowed_rate(self._unknown, self._seen)))
            self.state = self.rule.start()
