"""What a stream remembers of its verdicts: the recent ones, and whether margins drift."""

from __future__ import annotations

import numpy as np

from unseen.serve.stream.history import RECENT, SETTLED, History
from unseen.verdicts import VERDICT_DTYPE, VerdictArray


def verdicts(margins: np.ndarray) -> VerdictArray:
    table = np.zeros(len(margins), VERDICT_DTYPE)
    table["margin"], table["known"] = margins, margins > 0
    return table


def after(*means: float, seen: int = 0, block: int = 8, count: int = 1000) -> History:
    """A history of blocks of samples, `count` with each mean of the margins."""
    history, noise = History(seen), np.random.default_rng(0)
    margins = np.concatenate([noise.normal(mean, 1, count) for mean in means])
    for first in range(0, len(margins), block):
        history.add(first, verdicts(margins[first : first + block]))
    return history


def test_margins_that_move_while_a_detector_learns_are_no_drift_and_later_ones_are():
    assert after(0, 1, 1).drift < 1
    assert after(1, 1, 1, 2).drift >= 1
    assert after(0, 1, seen=SETTLED).drift >= 1  # it had learned before
    assert after(0, 0, count=SETTLED // 2).drift == 0


def test_recent_verdicts_are_the_last_ones_whatever_the_blocks():
    for block in (1, 7, 3000):
        history = after(0, 1, 2, block=block)
        recent = history.recent
        assert (recent.first, len(recent.verdicts)) == (3000 - RECENT, RECENT)
        assert np.array_equal(recent.verdicts, after(0, 1, 2, block=3000).recent.verdicts)
        assert recent.after(2990).first == 2991
    assert len(History().recent.verdicts) == 0


def test_what_a_reader_holds_does_not_change_while_more_comes():
    history = after(0, block=1, count=100)
    held, before = history.recent, history.recent.verdicts.copy()
    for first in range(100, 100 + 3 * RECENT):
        history.add(first, verdicts(np.array([float(first)])))
    assert np.array_equal(held.verdicts, before)
    assert history.recent.verdicts["margin"].tolist() == list(range(100 + 2 * RECENT, 100 + 3 * RECENT))
    assert len(history._room) <= 2 * RECENT
