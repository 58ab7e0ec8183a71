"""One stream that cannot be opened is marked and logged; the others open beside it."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from helpers.service import CONFIG, LABELS, Durability, Stream, StreamStore, open_store, sample_batch, write_config
from helpers.streams import stream
from unseen import checkpoint
from unseen.storage.files import load_tensors, save_tensors

Z = stream(LABELS, 40)


@pytest.fixture
def data(tmp_path):
    """A data folder with three streams that learned something and have a snapshot each."""
    with open_store(tmp_path) as streams:
        for _ in range(3):
            opened = streams.create(LABELS, CONFIG).opened
            opened.observe([sample_batch(LABELS, Z[:20])])
            opened.snapshot("auto")
            opened.observe([sample_batch(LABELS, Z[20:])])
    return tmp_path


@pytest.fixture
def folder(data):
    """The folder of one of the three streams."""
    return min((data / "streams").iterdir())


def statuses_of(streams: StreamStore) -> list[str]:
    return [entry.status for entry in streams.entries.values()]


def lose_the_detector(folder):
    write_config(folder, replace(CONFIG, id=folder.name, detector="gone"))


def add_an_odd_setting(folder):
    write_config(folder, replace(CONFIG, id=folder.name, settings={"no_such_setting": 1}))


def remove_the_label_space(folder):
    (folder / "space.safetensors").unlink()


def put_a_folder_in_place_of_the_journal(folder):
    for file in folder.glob("journal.db*"):
        file.unlink()
    (folder / "journal.db").mkdir()


@pytest.mark.parametrize(
    "harm", [lose_the_detector, add_an_odd_setting, remove_the_label_space, put_a_folder_in_place_of_the_journal]
)
def test_a_stream_that_fails_to_open_is_marked_and_logged_and_the_others_are_ready(data, folder, harm, caplog):
    harm(folder)
    with caplog.at_level(logging.ERROR), open_store(data) as streams:
        victim = streams.entries.pop(folder.name)
        assert streams.ready
        assert statuses_of(streams) == ["ready"] * 2
        assert victim.status == "damaged"
        assert victim.reason
        assert str(data) not in victim.reason
        assert folder.name in caplog.text


def test_stray_files_delay_no_stream(data, folder):
    for name in ("note.txt", ".new-note", ".old-note", "0" * 16):
        (data / "streams" / name).write_text("a note")
    (folder / "snapshots" / ".hidden").mkdir()
    for name in ("auto-copy.safetensors", "notes.safetensors", "auto-.safetensors", ".hidden/x"):
        (folder / "snapshots" / name).write_bytes(b"junk")
    with open_store(data) as streams:
        assert statuses_of(streams).count("ready") == 3


def test_a_snapshot_with_a_flipped_key_is_set_aside(data, folder):
    snapshot = max((folder / "snapshots").glob("auto-*"))
    raw = bytearray(snapshot.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    key = next(name for name in json.loads(raw[8 : 8 + size]) if name != "__metadata__")
    raw[raw.find(f'"{key}"'.encode()) + 1] ^= 1
    snapshot.write_bytes(raw)
    with open_store(data) as streams:
        entry = streams.entries[folder.name]
        assert entry.status == "ready"
        assert entry.opened.at.seq == 40
        assert entry.opened.faults
        assert str(data) not in str(entry.opened.faults)


def test_streams_open_beside_each_other(data, monkeypatch):
    opening, all_three = StreamStore.open, threading.Barrier(3)

    def meet(self, entry):
        all_three.wait(20)  # one after the other they would never meet
        opening(self, entry)

    monkeypatch.setattr(StreamStore, "open", meet)
    with open_store(data) as streams:
        assert statuses_of(streams) == ["ready"] * 3


@pytest.mark.timing
def test_snapshots_are_taken_when_a_restart_would_take_long(tmp_path):
    with open_store(tmp_path, durability=Durability(replay_seconds=0.02)) as streams:
        first, second = (streams.create(LABELS, CONFIG).opened for _ in range(2))
        for opened, repeats in ((first, 60), (second, 1)):
            for _ in range(repeats):
                opened.observe([sample_batch(LABELS, Z[:1])])
        assert first.replay_seconds > 0.02
        streams.snapshot_if_due(second)
        streams.threads.keeper.submit(lambda: None).result(10)
        assert first.snapshots.all("auto")
        assert first.replay_seconds < 0.01
    again = Stream(first.folder, first.config, first.durability)
    assert (again.at.seq, again.replayed) == (60, 0)
    again.abandon()


def test_snapshots_of_another_version_stay_as_they_are_and_their_reason_is_the_streams(data, folder):
    with closing(sqlite3.connect(folder / "journal.db")) as journal, journal:
        journal.execute("DELETE FROM entries WHERE id = 1")  # as if a snapshot covered it
    for path in (folder / "snapshots").iterdir():
        tensors, header = load_tensors(path, kind=checkpoint.KIND)
        newer = header.replace(f'"version": {checkpoint.VERSION}', '"version": 99')
        save_tensors(path, {name: x.clone() for name, x in tensors.items()}, kind=checkpoint.KIND, header=newer)
    before = {path.name: path.read_bytes() for path in (folder / "snapshots").iterdir()}
    with open_store(data) as streams:
        assert sorted(statuses_of(streams)) == ["damaged", "ready", "ready"]
        assert "got 99; upgrade unseen" in streams.entries[folder.name].reason
    assert {path.name: path.read_bytes() for path in (folder / "snapshots").iterdir()} == before
