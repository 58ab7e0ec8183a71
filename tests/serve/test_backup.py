"""Backups of a service while it is used, and their restoration."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

from helpers.commands import rows, run
from helpers.service import CONFIG, LABELS, Client, DataFolder, Server, create, open_store
from helpers.streams import stream
from unseen.errors import DataError, StateError
from unseen.serve import backup as copies


def test_a_backup_under_load_has_everything_acknowledged_before_it(tmp_path):
    with Server(tmp_path / "data", every=30) as server:
        ids = [create(server.client).id for _ in range(2)]
        stop, counts = threading.Event(), dict.fromkeys(ids, 0)

        def observe(id: str) -> None:
            with Client(server.url) as client:
                while not stop.is_set():
                    counts[id] = client.stream(id).observe(stream(LABELS, 7, seed=counts[id]))[-1]["seq"] + 1
                    kept = client.stream(id).snapshots() if counts[id] % 5 == 0 else []
                    if kept:
                        client.stream(id).restore(kept[-1]["snapshot"])

        threads = [threading.Thread(target=observe, args=(id,)) for id in ids]
        for thread in threads:
            thread.start()
        made, ends = [], time.monotonic() + 30
        while len(made) < 2 and time.monotonic() < ends:
            time.sleep(0.001)
            if min(counts.values()) > 40 * (len(made) + 1):
                before = dict(counts)
                made.append((tmp_path / f"copy-{len(made)}", before))
                assert copies.backup(tmp_path / "data", made[-1][0]) == 2
        stop.set()
        for thread in threads:
            thread.join()
    assert len(made) == 2
    for number, (folder, before) in enumerate(made):
        assert copies.restore(folder, tmp_path / f"again-{number}") == 2
        with open_store(tmp_path / f"again-{number}") as streams:
            for id, entry in streams.entries.items():
                assert (entry.status, entry.reason, entry.opened.faults) == ("ready", "", [])
                assert entry.opened.at.seq >= before[id]


@pytest.fixture
def data(tmp_path):
    with open_store(tmp_path / "data") as streams:
        streams.create(LABELS, CONFIG)
    return tmp_path / "data"


def test_a_stream_whose_snapshots_are_newer_than_its_journal_is_copied_again_then_refused(data, tmp_path):
    folder = copies.stream_folders(data)[0]
    (folder / "snapshots" / "auto-000000000009.safetensors").write_bytes(b"")
    with pytest.raises(StateError, match="5 times"):
        copies.copy_stream(folder, tmp_path / "copy")


def test_a_journal_that_is_damaged_is_not_copied(data, tmp_path):
    journal = copies.stream_folders(data)[0] / "journal.db"
    journal.write_bytes(b"x" * 4096)
    with pytest.raises(StateError, match="can be copied"):
        copies.backup(data, tmp_path / "copy")


def test_what_exists_is_not_overwritten(data, tmp_path):
    copies.backup(data, tmp_path / "copy")
    with pytest.raises(DataError, match="new folder for the backup"):
        copies.backup(data, tmp_path / "copy")
    with pytest.raises(DataError, match="not; move it away"):
        copies.restore(tmp_path / "copy", data)
    with pytest.raises(DataError, match="that `unseen backup` made"):
        copies.restore(tmp_path, tmp_path / "new")
    with pytest.raises(DataError, match="folder of a service"):
        copies.backup(tmp_path, tmp_path / "other")
    held = DataFolder(data)
    with pytest.raises(StateError, match="only service"):
        copies.restore(tmp_path / "copy", data)
    held.close()


def test_the_commands_copy_and_restore(data, tmp_path):
    (told,) = rows(run("backup", tmp_path / "copy", "--data", data, "--json"))
    assert told["streams"] == 1
    shutil.rmtree(data)
    run("restore", tmp_path / "copy", "--data", data)
    with open_store(data) as streams:
        assert [entry.status for entry in streams.entries.values()] == ["ready"]
