"""What disks, clients and clocks do to a service: noticed, refused or rolled back, never silently wrong."""

from __future__ import annotations

import contextlib
import random
import resource
import sqlite3
import time
from dataclasses import replace

import pytest
import torch

from helpers.service import (
    LABELS,
    TIP,
    DataFolder,
    Durability,
    Journal,
    JournalEntry,
    Position,
    Server,
    Settings,
    Stream,
    StreamConfig,
    StreamStore,
    downloaded,
    flat,
    reference,
    same,
    sample_batch,
    write_config,
)
from helpers.streams import space, stream
from unseen.errors import ServiceError, StateError

Z = stream(LABELS, 1000)
CONFIG = StreamConfig("0" * 16, "", "*", "online")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data" / "streams" / CONFIG.id
    path.mkdir(parents=True)
    LABELS.save(path / "space.safetensors")
    write_config(path, CONFIG)
    return path


def opened(folder, **durability) -> Stream:
    return Stream(folder, CONFIG, Durability(**durability))


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


@pytest.fixture
def snapshotted(folder):
    """A folder with two snapshots and some blocks behind the newer one, and the state it stands for."""
    stream = opened(folder)
    sent = fed(stream, 0, 100)
    stream.snapshot("auto")
    sent += fed(stream, 100, 200)
    stream.snapshot("auto")
    sent += fed(stream, 200, 250)
    left_behind(stream)
    return folder, flat(reference(CONFIG, LABELS, sent))


def test_a_restart_replays_only_what_came_after_the_snapshot(snapshotted):
    folder, expected = snapshotted
    stream = opened(folder)
    assert (stream.at.seq, stream.replayed) == (250, 50)
    assert same(flat(stream.readers), expected)
    stream.abandon()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("detector", ["default", "online"])
def test_a_replay_of_any_block_sizes_gives_the_same_bits(tmp_path, detector, seed):
    """Parts of many sizes, gathered as they come, with snapshots anywhere: a restart gives the bits that were learned.

    Wide enough that matrix products are cut into tiles, whose sums would round otherwise for another cutting.
    """
    choice, config = random.Random(seed), replace(CONFIG, detector=detector)
    labels = space(40, 300, dim=96, dtype=torch.float32)
    labels.save(tmp_path / "space.safetensors")
    stream_ = Stream(tmp_path, config, Durability())
    z = stream(labels, 600, seed=seed)
    while len(z):
        sizes = [choice.choice((1, 2, 3, 7, 16, 33)) for _ in range(choice.randint(1, 6))]
        stream_.observe([sample_batch(labels, part) for part in z[: sum(sizes)].split(choice.choice(sizes))])
        z = z[sum(sizes) :]
        if choice.random() < 0.2:
            stream_.snapshot("auto")
    learned = flat(stream_.readers)
    left_behind(stream_)
    again = Stream(tmp_path, config, Durability())
    assert same(flat(again.readers), learned)
    again.abandon()


def damaged_snapshot(folder, change):
    newest = sorted((folder / "snapshots").glob("auto-*"))[-1]
    newest.write_bytes(change(newest.read_bytes()))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="torn"),
        pytest.param(lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], id="flipped bit"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_a_damaged_snapshot_is_set_aside_and_reported(snapshotted, change):
    folder, expected = snapshotted
    damaged_snapshot(folder, change)
    stream = opened(folder)
    assert stream.replayed == 150  # from the snapshot before
    assert same(flat(stream.readers), expected)
    assert "was set aside: expected" in stream.faults[0]
    assert str(folder) not in stream.faults[0]
    assert len(list((folder / "snapshots").glob("damaged-*"))) == 1
    stream.abandon()


def test_without_any_good_snapshot_the_whole_journal_is_replayed(folder):
    stream = opened(folder)
    sent = fed(stream, 0, 100)
    stream.snapshot("auto")
    sent += fed(stream, 100, 150)
    left_behind(stream)
    damaged_snapshot(folder, lambda _: b"?")
    stream = opened(folder)
    assert stream.replayed == 150
    assert same(flat(stream.readers), flat(reference(CONFIG, LABELS, sent)))
    stream.abandon()


def test_a_stream_that_cannot_be_rebuilt_is_refused_and_the_others_go_on(folder, tmp_path):
    stream = opened(folder)
    for start in (0, 100, 200):
        fed(stream, start, start + 100)
        stream.snapshot("auto")
    fed(stream, 300, 310)  # forgets what the older snapshot covers
    stream.abandon()
    for path in (folder / "snapshots").glob("auto-*"):
        path.write_bytes(b"?")
    LABELS.save(tmp_path / "space")
    with Server(tmp_path / "data") as server:
        server.client.retries = 0
        (row,) = server.client.streams()
        assert row["status"] == "damaged"
        assert "restore a copy" in row["reason"]
        with pytest.raises(ServiceError, match="damaged") as caught:
            server.client.stream(CONFIG.id).score(Z[:1])
        assert caught.value.status == 503
        assert len(server.client.create(tmp_path / "space", detector="online").observe(Z[:3])) == 3


def test_an_altered_sample_in_the_journal_is_refused(snapshotted):
    folder, _ = snapshotted
    opened(folder).abandon()  # the log is now in the database
    database = folder / "journal.db"
    data, sample = database.read_bytes(), Z[220].numpy().tobytes()
    assert data.count(sample) == 1
    at = data.index(sample)
    database.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    with pytest.raises(StateError, match="missing or altered"):
        opened(folder)


@pytest.mark.parametrize("page", [0, 1, 2, 3])
def test_a_corrupted_page_is_refused_or_changes_no_bit(snapshotted, page):
    folder, expected = snapshotted
    opened(folder).abandon()
    database = folder / "journal.db"
    data = bytearray(database.read_bytes())
    data[page * 16384 + 100 : page * 16384 + 8000] = bytes(7900)
    database.write_bytes(data)
    with contextlib.suppress(StateError):
        stream = opened(folder)
        assert same(flat(stream.readers), expected)  # the page held nothing that this start needs
        stream.abandon()


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda data: data.replace(Z[45].numpy().tobytes(), Z[46].numpy().tobytes()), id="an altered page"),
        pytest.param(lambda data: data[: len(data) * 2 // 3], id="cut short"),
        pytest.param(lambda data: b"", id="gone"),
    ],
)
def test_a_log_that_lacks_what_was_acknowledged_is_refused(folder, harm):
    stream = opened(folder)
    fed(stream, 0, 100)
    left_behind(stream)
    log = folder / "journal.db-wal"
    log.write_bytes(harm(log.read_bytes()))
    with pytest.raises(StateError, match="where entry 10 was acknowledged"):
        opened(folder)


def test_a_torn_last_block_that_was_not_acknowledged_is_dropped(folder):
    stream = opened(folder)
    sent = fed(stream, 0, 90)
    acknowledged = (folder / TIP).read_bytes()
    sent += fed(stream, 90, 100)
    left_behind(stream)
    (folder / TIP).write_bytes(acknowledged)
    log = folder / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-5000])
    stream = opened(folder)
    assert stream.at.seq == 90
    assert same(flat(stream.readers), flat(reference(CONFIG, LABELS, sent[:-1])))
    stream.abandon()


def test_a_journal_that_ends_before_a_snapshot_is_refused(snapshotted):
    folder, _ = snapshotted
    opened(folder).abandon()
    with sqlite3.connect(folder / "journal.db") as database:
        database.execute("DELETE FROM entries WHERE id >= 15")
    database.close()
    with pytest.raises(StateError, match="where entry 25 was acknowledged"):
        opened(folder)
    (folder / TIP).unlink()
    with pytest.raises(StateError, match="missing or altered"):
        opened(folder)


def test_a_foreign_journal_is_refused(folder, tmp_path):
    start = Position.start("another stream")
    other = Journal(folder / "journal.db", start)
    other.append(start, JournalEntry("reset", 0, b""))
    other.close()
    with pytest.raises(StateError, match="missing or altered"):
        opened(folder)


@pytest.mark.parametrize(("found", "remedy"), [(99, "a newer unseen wrote it"), (0, "the unseen it is from")])
def test_a_journal_of_another_format_is_refused_untouched(folder, found, remedy):
    stream = opened(folder)
    fed(stream, 0, 20)
    stream.abandon()
    with sqlite3.connect(folder / "journal.db") as database:
        database.execute(f"PRAGMA user_version = {found}")
    database.close()
    with pytest.raises(StateError, match=f"format 2 or 1, got format {found}; .*{remedy}"):
        opened(folder)
    with sqlite3.connect(folder / "journal.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (found,)
    database.close()


def test_a_replay_on_other_arithmetic_is_reported_once(snapshotted, monkeypatch):
    folder, _ = snapshotted
    monkeypatch.setattr("unseen.serve.stream.states.arithmetic", lambda: "another machine")
    stream = opened(folder)
    assert "50 samples were learned with torch" in stream.faults[0]
    assert "replayed with another machine: equal to rounding" in stream.faults[0]
    stream.abandon()
    again = opened(folder)
    assert again.faults == []
    again.abandon()


def test_an_altered_receipt_is_refused(folder):
    stream = opened(folder)
    stream.observe([sample_batch(LABELS, Z[:2], "key")])
    stream.abandon()
    with sqlite3.connect(folder / "journal.db") as database:
        database.execute("UPDATE receipts SET first = first + 1")
    database.close()
    with pytest.raises(StateError, match="receipt"):
        opened(folder)


def test_a_full_disk_returns_507_and_learning_goes_on_when_there_is_room(tmp_path):
    LABELS.save(tmp_path / "space")
    with Server(tmp_path / "data", room=400_000) as server:
        remote = server.client.create(tmp_path / "space", detector="online")
        server.client.retries = 0
        sent = []

        def fill():
            for part in Z.split(20):
                remote.observe(part, key=f"part {len(sent)}")
                sent.append(part)

        with pytest.raises(ServiceError, match="sound disk") as caught:
            fill()
        assert caught.value.status == 507
        assert 0 < len(sent) < 50
        assert remote.info()["seq"] == 20 * len(sent)
        assert remote.score(Z[:1])
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 30, resource.RLIM_INFINITY))
        part = Z[20 * len(sent) :][:20]
        assert remote.observe(part, key=f"part {len(sent)}")[0]["seq"] == 20 * len(sent)
        sent.append(part)
        expected = flat(reference(CONFIG, LABELS, sent))
        assert same(downloaded(remote, LABELS, tmp_path / "state"), expected)
    with Server(tmp_path / "data") as server:
        assert same(downloaded(server.client.stream(remote.id), LABELS, tmp_path / "state"), expected)


def give_room(server, size: int = 1 << 30) -> None:
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_every_route_answers_507_while_the_disk_is_full_and_goes_on_by_itself(tmp_path):
    LABELS.save(tmp_path / "space")
    with Server(tmp_path / "data") as server:
        remote = server.client.create(tmp_path / "space", detector="online")
        remote.observe(Z[:20])
        number = remote.snapshot()
        server.client.retries = 0
        give_room(server, 1024)
        verbs = {
            "observe": lambda: remote.observe(Z[20:40], key="again"),
            "reset": remote.reset,
            "snapshot": remote.snapshot,
            "state": lambda: remote.state(tmp_path / "other"),
            "restore": lambda: remote.restore(number),
            "create": lambda: server.client.create(tmp_path / "space", detector="online"),
        }
        for _ in range(2):
            for name, verb in verbs.items():
                with pytest.raises(ServiceError) as caught:
                    verb()
                assert (name, caught.value.status) == (name, 507)
        assert remote.score(Z[:1])
        assert remote.info()["seq"] == 20
        give_room(server)
        assert [row["seq"] for row in remote.observe(Z[20:40], key="again")] == list(range(20, 40))
        assert remote.snapshot()
    assert not list((tmp_path / "data" / "streams").glob(".*"))


def test_a_stream_waits_for_room_at_start_and_opens_by_itself(tmp_path):
    LABELS.save(tmp_path / "space")
    first = Server(tmp_path / "data").ready()
    remote = first.client.create(tmp_path / "space", detector="online")
    remote.observe(Z[:20])
    first.kill()
    with Server(tmp_path / "data", room=1024) as server:
        server.client.retries = 0
        stream = server.client.stream(remote.id)
        (row,) = server.client.streams()
        assert row["status"] == "waiting"
        with pytest.raises(ServiceError) as caught:
            stream.observe(Z[20:21])
        assert caught.value.status == 507
        give_room(server)
        for _ in range(100):
            if server.client.streams()[0]["status"] == "ready":
                break
            time.sleep(0.05)
        assert stream.observe(Z[20:21])[0]["seq"] == 20


def test_accepting_a_shortened_journal_leaves_a_fault(folder):
    stream = opened(folder)
    fed(stream, 0, 100)
    left_behind(stream)
    log = folder / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-40_000])
    (folder / TIP).unlink()
    stream = opened(folder)
    assert "removed" in stream.faults[0]
    stream.abandon()
    stream = opened(folder)
    assert not stream.faults
    stream.abandon()


def test_after_an_unconfirmed_write_the_state_is_read_back_from_disk(folder, monkeypatch):
    stream = opened(folder)
    sent = fed(stream, 0, 50)
    append = Journal.append

    def written_but_not_confirmed(self, *args, **options):
        append(self, *args, **options)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Journal, "append", written_but_not_confirmed)
    with pytest.raises(ServiceError, match="disk I/O error"):
        stream.observe([sample_batch(LABELS, Z[50:60], "key")])
    assert stream.readers.snapshot.tally.seen == 50
    monkeypatch.undo()
    (answer,) = stream.observe([sample_batch(LABELS, Z[50:60], "key")])
    assert (answer.first, answer.repeated) == (50, True)
    assert same(flat(stream.readers), flat(reference(CONFIG, LABELS, [*sent, Z[50:60]])))
    stream.abandon()


def test_a_failed_snapshot_is_reported_and_loses_no_sample(folder, tmp_path, monkeypatch):
    settings = Settings(tmp_path / "data", durability=Durability(every=10))
    streams = StreamStore(DataFolder(settings.data), settings)
    streams.open_all()
    stream = streams.entries[CONFIG.id].stream
    fed(stream, 0, 50)
    monkeypatch.setattr("unseen.checkpoint.save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    streams.snapshot_if_due(stream)
    streams.close()
    assert "No space left" in stream.faults[0]
    monkeypatch.undo()
    again = opened(folder)
    assert again.replayed == 50
    again.abandon()
