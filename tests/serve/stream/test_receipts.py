"""A block is written while it is computed: what is answered, repeated or failed stays right through kills."""

from __future__ import annotations

import threading

import pytest

from helpers.service import LABELS, BatchVerdicts, Journal, flat, learned, same, sample_batch
from helpers.streams import stream

Z = stream(LABELS, 30)


def keyed(start: int, key: str | None, count: int = 3):
    return sample_batch(LABELS, Z[start : start + count], key)


def test_answers_that_a_kill_loses_come_back_with_the_replay(opened):
    first = opened()
    first.observe([keyed(0, "earlier")])
    answers = first.observe([keyed(3, None), keyed(6, "a", 1), keyed(7, "b", 5)])
    first.abandon()
    again = opened()
    repeated = again.observe([keyed(6, "a", 1), keyed(7, "b", 5), keyed(0, "earlier")])
    assert all(one.repeated for one in repeated)
    assert [one.first for one in repeated] == [6, 7, 0]
    for old, new in zip(answers[1:], repeated, strict=False):
        assert old.verdicts.tobytes() == new.verdicts.tobytes()
    assert again.at.seq == 12, "a repeated request was learned again"


def test_a_request_whose_answer_is_no_longer_kept_gets_the_verdicts_of_now_and_is_not_learned_again(opened):
    first = opened()
    first.observe([keyed(0, "a")])
    first.observe([keyed(3, None)])
    first.snapshot("auto")
    first.abandon()
    again = opened()
    assert again.replayed == 0
    before = flat(again.readers)
    (repeated,) = again.observe([keyed(0, "a")])
    assert isinstance(repeated, BatchVerdicts)
    assert (repeated.repeated, repeated.first, len(repeated)) == (True, 0, 3)
    assert repeated.verdicts.tobytes() == again.score([keyed(0, None)])[0].verdicts.tobytes()
    assert same(flat(again.readers), before)
    assert again.at.seq == 6


def test_a_block_that_cannot_be_computed_is_taken_back(opened, monkeypatch):
    used = opened()
    used.observe([keyed(0, "a")])

    def broken(z):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(used.writer, "observe", broken)
        with pytest.raises(MemoryError):
            used.observe([keyed(3, "b")])
    assert used.at.seq == 3
    (answer,) = used.observe([keyed(3, "b")])
    assert not answer.repeated
    used.abandon()
    again = opened()
    assert again.at.seq == 6
    assert same(flat(again.readers), learned([Z[:3], Z[3:6]]))


def test_a_block_is_computed_while_it_is_written(opened, monkeypatch):
    used, began = opened(), threading.Event()
    append, observe = Journal.append, used.writer.observe

    def noted_append(*arguments, **options):
        began.set()
        return append(*arguments, **options)

    def patient_observe(z):
        assert began.wait(10), "the journal waits for the detector"
        return observe(z)

    monkeypatch.setattr(Journal, "append", noted_append)
    monkeypatch.setattr(used.writer, "observe", patient_observe)
    used.observe([keyed(0, None)])
    assert used.at.seq == 3


def test_as_many_keys_are_remembered_as_is_wanted(opened):
    stream = opened(receipts=2)
    for number in range(6):
        stream.observe([keyed(0, f"key {number}", 1)])
        stream.snapshot("auto")
    stream.observe([keyed(0, "last", 1)])
    assert [stream.observe([keyed(0, f"key {number}", 1)])[0].repeated for number in (0, 5)] == [False, True]
