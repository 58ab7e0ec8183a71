"""What a stream remembers of its verdicts: the recent ones, whether margins drift, an alarm, and what came along."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.service import PAGE, BatchVerdicts, History, RecentItems, UnknownAlarm
from unseen.verdicts import VERDICT_DTYPE


def block(first: int, margins: np.ndarray, names: tuple[str, ...] = (), *, warming: bool = False) -> BatchVerdicts:
    table = np.zeros(len(margins), VERDICT_DTYPE)
    table["margin"], table["known"], table["warming"] = margins, margins > 0, warming
    return BatchVerdicts(first, table, names, ("wolf",))


def after(*means: float, seen: int = 0, size: int = 8, count: int = 1000) -> History:
    """A history of blocks of samples, `count` with each mean of the margins."""
    history, noise = History(seen), np.random.default_rng(0)
    margins = np.concatenate([noise.normal(mean, 1, count) for mean in means])
    for first in range(0, len(margins), size):
        history.add(block(first, margins[first : first + size]))
    return history


def test_margins_that_move_while_a_detector_learns_are_no_drift_and_later_ones_are():
    assert after(0, 1, 1).drift < 1
    assert after(1, 1, 1, 2).drift >= 1
    assert after(0, 1, seen=PAGE.settled).drift >= 1  # it had learned before
    assert after(0, 0, count=PAGE.settled // 2).drift == 0


def test_recent_verdicts_are_the_last_ones_whatever_the_blocks():
    whole = after(0, 1, 2, size=3000)
    for size in (1, 7, 3000):
        history = after(0, 1, 2, size=size)
        recent = history.recent()
        assert (recent[0].first, sum(map(len, recent))) == (3000 - PAGE.recent, PAGE.recent)
        assert history.margins() == whole.margins()
        assert history.margins(after=2990) == whole.margins()[-9:]
    assert History().recent() == []


def test_what_comes_with_samples_drops_the_oldest_beyond_a_count_and_a_size():
    few = RecentItems[bytes](3, 100)
    few.add({0: b"a", 1: b"b"})
    few.add({2: b"c", 3: b"d"})
    assert [seq in few for seq in range(4)] == [False, True, True, True]
    small = RecentItems[str | None](100, 10)
    small.add({0: "x" * 6, 1: None, 2: "y" * 4})
    assert [seq in small for seq in range(3)] == [True, True, True]
    small.add({3: "z" * 5})
    assert [seq in small for seq in range(4)] == [False, True, True, True]
    small.add({4: "w" * 20})
    assert small.get(4) is None


def test_the_alarm_learns_the_usual_rate_and_names_the_sample_that_raised_it():
    watch, usual = UnknownAlarm(), np.array([1.0, 1.0, 1.0, -1.0])
    watch.add(block(0, -np.ones(500), warming=True))
    watch.add(block(500, np.tile(usual, 250)))
    assert watch.shown()["allowed"] == pytest.approx(0.25, abs=0.07)
    watch.add(block(1500, np.tile(usual, 100)))
    assert watch.raised_at is None
    watch.add(block(1900, -np.ones(100)))
    assert watch.raised_at is not None
    assert 1900 < watch.raised_at < 1930
