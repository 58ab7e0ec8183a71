"""What a kill or a bad disk does to the files of a stream: rolled back, reported or refused, never silently wrong."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from dataclasses import replace

import pytest
import torch

from helpers.service import (
    CONFIG,
    LABELS,
    TIP,
    Durability,
    Journal,
    JournalEntry,
    Position,
    Stream,
    flat,
    learned,
    open_store,
    same,
    sample_batch,
)
from helpers.streams import space, stream
from unseen.errors import ServiceError, StateError

Z = stream(LABELS, 400)


def fed(stream: Stream, start: int, stop: int, *, size: int = 10) -> list[torch.Tensor]:
    parts = list(Z[start:stop].split(size))
    for part in parts:
        stream.observe([sample_batch(LABELS, part)])
    return parts


def left_behind(stream: Stream) -> None:
    """Let go of the files as a kill does: nothing is checkpointed, no snapshot is taken."""
    copy = {path: path.read_bytes() for path in stream.folder.glob("journal.db*")}
    stream.abandon()
    for path, data in copy.items():
        if not path.name.endswith("-shm"):
            path.write_bytes(data)


def altered(folder, *statements: str) -> None:
    """Change a journal behind the back of its stream."""
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.fixture
def expected(opened):
    """The state of a stream that left two snapshots and some blocks behind the newer one."""
    stream = opened()
    sent = fed(stream, 0, 100)
    stream.snapshot("auto")
    sent += fed(stream, 100, 200)
    stream.snapshot("auto")
    sent += fed(stream, 200, 250)
    left_behind(stream)
    return learned(sent)


def test_a_restart_replays_only_what_came_after_the_snapshot(opened, expected):
    stream = opened()
    assert (stream.at.seq, stream.replayed) == (250, 50)
    assert same(flat(stream.readers), expected)


def test_reset_and_restore_survive_a_kill(opened):
    stream = opened()
    fed(stream, 0, 20)
    snapshot = stream.snapshot().entry
    fed(stream, 20, 40)
    stream.reset()
    fed(stream, 40, 50)
    stream.restore(snapshot)
    fed(stream, 50, 60)
    left_behind(stream)
    again = opened()
    assert again.at.seq == 60
    assert same(flat(again.readers), learned([*Z[:20].split(10), Z[50:60]]))


@pytest.mark.parametrize("detector", ["default", "online"])
def test_a_replay_of_any_block_sizes_gives_the_same_bits(tmp_path, detector):
    """Parts of many sizes, gathered as they come, with snapshots anywhere: a restart gives the bits that were learned.

    Wide enough that matrix products are cut into tiles, whose sums would round otherwise for another cutting.
    """
    choice, config = random.Random(0), replace(CONFIG, detector=detector)
    labels = space(40, 300, dim=96, dtype=torch.float32)
    labels.save(tmp_path / "space.safetensors")
    stream_ = Stream(tmp_path, config, Durability())
    z = stream(labels, 1200)
    while len(z):
        sizes = [choice.choice((1, 2, 3, 7, 16, 33)) for _ in range(choice.randint(1, 6))]
        stream_.observe([sample_batch(labels, part) for part in z[: sum(sizes)].split(choice.choice(sizes))])
        z = z[sum(sizes) :]
        if choice.random() < 0.1:
            stream_.snapshot("auto")
    before = flat(stream_.readers)
    left_behind(stream_)
    again = Stream(tmp_path, config, Durability())
    assert again.replayed > 0
    assert same(flat(again.readers), before)
    again.abandon()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="torn"),
        pytest.param(lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], id="flipped bit"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_a_damaged_snapshot_is_set_aside_and_reported(folder, opened, expected, change):
    newest = max((folder / "snapshots").glob("auto-*"))
    newest.write_bytes(change(newest.read_bytes()))
    stream = opened()
    assert stream.replayed == 150  # from the snapshot before
    assert same(flat(stream.readers), expected)
    assert "was set aside: expected" in stream.faults[0]
    assert str(folder) not in stream.faults[0]
    assert len(list((folder / "snapshots").glob("damaged-*"))) == 1


def test_without_any_good_snapshot_the_whole_journal_is_replayed_or_the_stream_is_refused(folder, opened):
    stream = opened()
    sent = fed(stream, 0, 100)
    stream.snapshot("auto")
    sent += fed(stream, 100, 150)
    left_behind(stream)
    for path in (folder / "snapshots").glob("auto-*"):
        path.write_bytes(b"?")
    stream = opened()
    assert stream.replayed == 150
    assert same(flat(stream.readers), learned(sent))
    for start in (150, 200, 250):
        stream.snapshot("auto")
        fed(stream, start, start + 50)  # forgets what the older snapshot covers
    stream.abandon()
    for path in (folder / "snapshots").glob("auto-*"):
        path.write_bytes(b"?")
    with pytest.raises(StateError, match="restore a copy"):
        opened()


def test_an_altered_sample_in_the_journal_is_refused(folder, opened, expected):
    opened().abandon()  # the log is now in the database
    database = folder / "journal.db"
    data, sample = database.read_bytes(), Z[220].numpy().tobytes()
    assert data.count(sample) == 1
    at = data.index(sample)
    database.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    with pytest.raises(StateError, match="missing or altered"):
        opened()


@pytest.mark.parametrize("page", [0, 1, 2, 3])
def test_a_corrupted_page_is_refused_or_changes_no_bit(folder, opened, expected, page):
    opened().abandon()
    database = folder / "journal.db"
    data = bytearray(database.read_bytes())
    data[page * 16384 + 100 : page * 16384 + 8000] = bytes(7900)
    database.write_bytes(data)
    with contextlib.suppress(StateError):
        assert same(flat(opened().readers), expected)  # the page held nothing that this start needs


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda data: data.replace(Z[45].numpy().tobytes(), Z[46].numpy().tobytes()), id="an altered page"),
        pytest.param(lambda data: data[: len(data) * 2 // 3], id="cut short"),
        pytest.param(lambda data: b"", id="gone"),
    ],
)
def test_a_log_that_lacks_what_was_acknowledged_is_refused(folder, opened, harm):
    stream = opened()
    fed(stream, 0, 100)
    left_behind(stream)
    log = folder / "journal.db-wal"
    log.write_bytes(harm(log.read_bytes()))
    with pytest.raises(StateError, match="where entry 10 was acknowledged"):
        opened()


def test_a_torn_last_block_that_was_not_acknowledged_is_dropped(folder, opened):
    stream = opened()
    sent = fed(stream, 0, 90)
    acknowledged = (folder / TIP).read_bytes()
    sent += fed(stream, 90, 100)
    left_behind(stream)
    (folder / TIP).write_bytes(acknowledged)
    log = folder / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-5000])
    stream = opened()
    assert stream.at.seq == 90
    assert same(flat(stream.readers), learned(sent[:-1]))


def test_a_journal_that_ends_before_a_snapshot_is_refused(folder, opened, expected):
    opened().abandon()
    altered(folder, "DELETE FROM entries WHERE id >= 15")
    with pytest.raises(StateError, match="where entry 25 was acknowledged"):
        opened()
    (folder / TIP).unlink()
    with pytest.raises(StateError, match="missing or altered"):
        opened()


def test_a_foreign_journal_is_refused(folder, opened):
    start = Position.start("another stream")
    other = Journal(folder / "journal.db", start)
    other.append(start, JournalEntry("reset", 0, b""))
    other.close()
    with pytest.raises(StateError, match="missing or altered"):
        opened()


@pytest.mark.parametrize(("found", "remedy"), [(99, "a newer unseen wrote it"), (0, "the unseen it is from")])
def test_a_journal_of_another_format_is_refused_untouched(folder, opened, found, remedy):
    opened().abandon()
    altered(folder, f"PRAGMA user_version = {found}")
    before = (folder / "journal.db").read_bytes()
    with pytest.raises(StateError, match=f"format 2 or 1, got format {found}; .*{remedy}"):
        opened()
    assert (folder / "journal.db").read_bytes() == before


def test_a_replay_on_other_arithmetic_is_reported_once(opened, expected, monkeypatch):
    monkeypatch.setattr("unseen.serve.stream.states.arithmetic", lambda: "another machine")
    stream = opened()
    assert "50 samples were learned with torch" in stream.faults[0]
    assert "replayed with another machine: equal to rounding" in stream.faults[0]
    stream.abandon()
    assert opened().faults == []


def test_an_altered_receipt_is_refused(folder, opened):
    stream = opened()
    stream.observe([sample_batch(LABELS, Z[:2], "key")])
    stream.abandon()
    altered(folder, "UPDATE receipts SET first = first + 1")
    with pytest.raises(StateError, match="receipt"):
        opened()


def test_accepting_a_shortened_journal_leaves_a_fault(folder, opened):
    stream = opened()
    fed(stream, 0, 100)
    left_behind(stream)
    log = folder / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-40_000])
    (folder / TIP).unlink()
    stream = opened()
    assert "removed" in stream.faults[0]
    stream.abandon()
    assert not opened().faults


def test_after_an_unconfirmed_write_the_state_is_read_back_from_disk(opened, monkeypatch):
    stream = opened()
    sent = fed(stream, 0, 50)
    append = Journal.append

    def written_but_not_confirmed(self, *args, **options):
        append(self, *args, **options)
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", written_but_not_confirmed)
        with pytest.raises(ServiceError, match="disk I/O error"):
            stream.observe([sample_batch(LABELS, Z[50:60], "key")])
    assert stream.readers.snapshot.tally.seen == 50
    (answer,) = stream.observe([sample_batch(LABELS, Z[50:60], "key")])
    assert (answer.first, answer.repeated) == (50, True)
    assert same(flat(stream.readers), learned([*sent, Z[50:60]]))


def test_a_failed_snapshot_is_reported_and_loses_no_sample(folder, opened, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left")

    with monkeypatch.context() as patch, open_store(tmp_path / "data", durability=Durability(every=10)) as streams:
        stream = streams.entries[folder.name].stream
        fed(stream, 0, 50)
        patch.setattr("unseen.checkpoint.save", full)
        streams.snapshot_if_due(stream)
    assert "No space left" in stream.faults[0]
    assert opened().replayed == 50
