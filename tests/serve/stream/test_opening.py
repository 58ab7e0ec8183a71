"""One stream that cannot be opened is marked and logged; the others open beside it."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from helpers.service import (
    LABELS,
    DataFolder,
    Durability,
    Settings,
    Stream,
    StreamConfig,
    StreamStore,
    sample_batch,
    write_config,
)
from helpers.streams import stream
from unseen import checkpoint
from unseen.storage.files import load_tensors, save_tensors

Z = stream(LABELS, 40)
CONFIG = StreamConfig("", "", "*", "online")


def store(data) -> StreamStore:
    return StreamStore(DataFolder(data), Settings(data))


@pytest.fixture
def data(tmp_path):
    """A data folder with three streams that learned something and have a snapshot each."""
    streams = store(tmp_path)
    for _ in range(3):
        opened = streams.create(LABELS, CONFIG).opened
        opened.observe([sample_batch(LABELS, Z[:20])])
        opened.snapshot("auto")
        opened.observe([sample_batch(LABELS, Z[20:])])
    streams.close()
    return tmp_path


def lose_the_detector(folder):
    write_config(folder, replace(CONFIG, id=folder.name, detector="gone"))


def add_an_odd_setting(folder):
    write_config(folder, replace(CONFIG, id=folder.name, settings={"no_such_setting": 1}))


def cut_the_label_space(folder):
    (folder / "space.safetensors").write_bytes(b"junk")


def remove_the_label_space(folder):
    (folder / "space.safetensors").unlink()


def put_a_folder_in_place_of_the_journal(folder):
    for file in folder.glob("journal.db*"):
        file.unlink()
    (folder / "journal.db").mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        lose_the_detector,
        add_an_odd_setting,
        cut_the_label_space,
        remove_the_label_space,
        put_a_folder_in_place_of_the_journal,
    ],
)
def test_a_stream_that_fails_to_open_is_marked_and_logged_and_the_others_are_ready(data, harm, caplog):
    victim = sorted((data / "streams").iterdir())[0]
    harm(victim)
    with caplog.at_level(logging.ERROR):
        streams = store(data)
        streams.open_all()
    statuses = {id: entry.status for id, entry in streams.entries.items()}
    assert streams.ready
    assert statuses.pop(victim.name) == "damaged"
    assert set(statuses.values()) == {"ready"}
    assert streams.entries[victim.name].reason
    assert str(data) not in streams.entries[victim.name].reason
    assert victim.name in caplog.text
    streams.close()


@pytest.mark.parametrize("name", ["auto-copy.safetensors", "notes.safetensors", "auto-.safetensors", ".hidden/x"])
def test_a_stray_file_among_snapshots_is_ignored(data, name):
    folder = sorted((data / "streams").iterdir())[0]
    stray = folder / "snapshots" / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"junk")
    streams = store(data)
    streams.open_all()
    assert {entry.status for entry in streams.entries.values()} == {"ready"}
    streams.close()


@pytest.mark.parametrize("name", ["note.txt", ".new-note", ".old-note", "0" * 16])
def test_a_stray_file_among_streams_delays_no_stream(data, name):
    (data / "streams" / name).write_text("a note")
    streams = store(data)
    streams.open_all()
    assert [entry.status for entry in streams.entries.values()].count("ready") == 3
    streams.close()


def test_a_snapshot_with_a_flipped_key_is_set_aside(data):
    folder = sorted((data / "streams").iterdir())[0]
    snapshot = max((folder / "snapshots").glob("auto-*"))
    raw = bytearray(snapshot.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    key = next(name for name in header if name != "__metadata__")
    place = raw.find(f'"{key}"'.encode()) + 1
    raw[place] ^= 1
    snapshot.write_bytes(raw)
    streams = store(data)
    streams.open_all()
    entry = streams.entries[folder.name]
    assert entry.status == "ready"
    assert entry.opened.at.seq == 40
    assert entry.opened.faults
    assert str(data) not in str(entry.opened.faults)
    streams.close()


def test_streams_open_beside_each_other(data, monkeypatch):
    opening, all_three = StreamStore.open, threading.Barrier(3)

    def meet(self, entry):
        all_three.wait(20)  # one after the other they would never meet
        opening(self, entry)

    monkeypatch.setattr(StreamStore, "open", meet)
    streams = store(data)
    streams.open_all()
    assert [entry.status for entry in streams.entries.values()] == ["ready"] * 3
    streams.close()


@pytest.mark.timing
def test_snapshots_are_taken_when_a_restart_would_take_long(tmp_path):
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path, durability=Durability(replay_seconds=0.02)))
    first, second = (streams.create(LABELS, CONFIG).opened for _ in range(2))
    for opened, repeats in ((first, 60), (second, 1)):
        for _ in range(repeats):
            opened.observe([sample_batch(LABELS, Z[:1])])
    assert first.replay_seconds > 0.02
    streams.snapshot_if_due(second)
    streams.threads.keeper.submit(lambda: None).result(10)
    assert first.snapshots.all("auto")
    assert first.replay_seconds < 0.01
    first.abandon()
    again = Stream(first.folder, first.config, first.durability)
    assert (again.at.seq, again.replayed) == (60, 0)
    again.abandon()
    second.abandon()
    streams.folder.close()
    streams.threads.close()


def test_snapshots_of_another_version_stay_as_they_are_and_their_reason_is_the_streams(data):
    folder = next((data / "streams").iterdir())
    with closing(sqlite3.connect(folder / "journal.db")) as journal:
        journal.execute("DELETE FROM entries WHERE id = 1")  # as if a snapshot covered it
        journal.commit()
    for path in (folder / "snapshots").iterdir():
        tensors, header = load_tensors(path, kind=checkpoint.KIND)
        save_tensors(path, {name: x.clone() for name, x in tensors.items()}, kind=checkpoint.KIND,
                     header=header.replace(f'"version": {checkpoint.VERSION}', '"version": 99'))  # fmt: skip
    before = {path.name: path.read_bytes() for path in (folder / "snapshots").iterdir()}
    again = store(data)
    again.open_all()
    statuses = Counter(entry.status for entry in again.entries.values())
    assert statuses == {"ready": 2, "damaged": 1}
    assert "got 99; upgrade unseen" in again.entries[folder.name].reason
    assert {path.name: path.read_bytes() for path in (folder / "snapshots").iterdir()} == before
    again.close()
