"""A block is written while it is computed: what is answered, repeated or failed stays right through kills."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
import torch

from helpers.service import flat, reference, same
from helpers.streams import space, stream
from unseen.serve.settings import Durability
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.config import StreamConfig, write_config
from unseen.serve.stream.journal import Journal
from unseen.serve.stream.receipts import RECEIPT
from unseen.serve.stream.snapshots import AUTO
from unseen.serve.stream.stream import Stream
from unseen.verdicts import VERDICT_DTYPE

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 30)
CONFIG = StreamConfig("0" * 16, "", "*", "online")


@pytest.fixture
def folder(tmp_path):
    LABELS.save(tmp_path / "space.safetensors")
    write_config(tmp_path, CONFIG)
    return tmp_path


def opened(folder) -> Stream:
    return Stream(folder, CONFIG, Durability())


def keyed(start: int, key: str | None, count: int = 3):
    return sample_batch(LABELS, Z[start : start + count], key)


def killed(stream: Stream) -> None:
    """Let go of the files as a kill does: answers that were not written are lost."""
    stream.journal.rest()


def seals(folder) -> list[bytes]:
    with closing(sqlite3.connect(folder / "journal.db")) as db:
        return [row[0] for row in db.execute("SELECT seal FROM receipts ORDER BY id")]


def test_answers_that_a_kill_loses_come_back_with_the_replay(folder):
    first = opened(folder)
    first.observe([keyed(0, "earlier")])
    answers = first.observe([keyed(3, None), keyed(6, "a", 1), keyed(7, "b", 5)])
    killed(first)
    assert [bool(seal) for seal in seals(folder)] == [True, False, False]
    again = opened(folder)
    repeated = again.observe([keyed(6, "a", 1), keyed(7, "b", 5), keyed(0, "earlier")])
    assert all(one.repeated for one in repeated)
    assert [one.first for one in repeated] == [6, 7, 0]
    for old, new in zip(answers[1:], repeated, strict=False):
        assert old.verdicts.tobytes() == new.verdicts.tobytes()
    assert again.at.seq == 12, "a repeated request was learned again"
    again.close()
    assert all(seals(folder))


def test_what_a_snapshot_covers_has_its_answers_on_disk(folder):
    first = opened(folder)
    (answer,) = first.observe([keyed(0, "a")])
    first.snapshot(AUTO)
    killed(first)
    again = opened(folder)
    assert again.replayed == 0
    (repeated,) = again.observe([keyed(0, "a")])
    assert repeated.repeated
    assert repeated.verdicts.tobytes() == answer.verdicts.tobytes()


def test_a_block_that_cannot_be_computed_is_taken_back(folder, monkeypatch):
    used = opened(folder)
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
    killed(used)
    again = opened(folder)
    assert again.at.seq == 6
    assert same(flat(again.readers), flat(reference(CONFIG, LABELS, [Z[:3], Z[3:6]])))


def test_a_block_is_computed_while_it_is_written(folder, monkeypatch):
    used, began = opened(folder), threading.Event()
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


def test_answers_to_many_samples_take_no_more_room_than_those_to_few(folder):
    """Receipts are counted, and one may answer thousands of samples: their bytes are bounded by the same count."""
    most = 4
    samples = most * RECEIPT // VERDICT_DTYPE.itemsize
    stream = Stream(folder, CONFIG, Durability(receipts=most, every=1))
    for number in range(4):
        stream.observe([keyed(0, f"large {number}", samples // 2)])
        stream.snapshot(AUTO)
    stream.observe([keyed(0, "last", 1)])
    with closing(sqlite3.connect(folder / "journal.db")) as db:
        kept = db.execute("SELECT count(*) FROM receipts").fetchone()[0]
    assert 1 < kept < 4
    assert stream.observe([keyed(0, "large 3", samples // 2)])[0].repeated
