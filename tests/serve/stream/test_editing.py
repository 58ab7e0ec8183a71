"""Edits of one stream, without HTTP: what is on disk, and what a crash in the middle leaves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from helpers.service import (
    CONFIG,
    LABELS,
    Durability,
    Limits,
    Stream,
    copy_stream,
    edit_stream,
    flat,
    same,
    sample_batch,
    stream_groups,
    undone,
    write_config,
)
from helpers.streams import stream
from unseen.discover import group, rename
from unseen.errors import ServiceError

LIMITS = Limits()


@pytest.fixture
def live(folder):
    """An open stream of the recommended detector that has unknown samples."""
    config = replace(CONFIG, id=folder.name, detector="pooled")
    write_config(folder, config)
    opened = Stream(folder, config, Durability())
    opened.observe([sample_batch(LABELS, stream(LABELS, 40))])
    yield opened
    opened.abandon()


def again(live: Stream) -> Stream:
    """Open the folder of a stream as after a kill."""
    live.abandon()
    return Stream(live.folder, live.config, live.durability)


def called(name: str, new: str):
    return partial(rename, old=name, new=new)


def test_many_edits_leave_few_files_and_the_latest_can_be_undone(live):
    first = live.labels.names[0]
    for turn in range(12):
        edit_stream(live, called(live.labels.names[0], f"renamed {turn}"), LIMITS)
    assert len(live.snapshots.all("before")) == 8
    assert len(list((live.folder / "spaces").glob("*.safetensors"))) <= 11
    assert len(list((live.folder / "snapshots").glob("*"))) <= 14
    for _ in range(8):
        edit_stream(live, partial(undone, live), LIMITS)
    assert live.labels.names[0] == "renamed 3"
    with pytest.raises(ServiceError, match="expected an edit whose state is kept, got edit 4"):
        edit_stream(live, partial(undone, live), LIMITS)
    reopened = again(live)
    assert reopened.labels.names[0] == "renamed 3" != first
    reopened.abandon()


def test_a_crash_before_the_journal_entry_leaves_the_stream_of_before(live, monkeypatch):
    before, names = flat(live.readers), live.labels.names

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live.journal, "append", full)
    with pytest.raises(ServiceError, match="nothing was learned"):
        edit_stream(live, called(names[0], "other"), LIMITS)
    monkeypatch.undo()
    reopened = again(live)
    assert reopened.labels.names == names
    assert same(flat(reopened.readers), before)
    edit_stream(reopened, called(names[0], "other"), LIMITS)
    assert reopened.labels.names[0] == "other"
    reopened.abandon()


def test_a_backup_has_the_label_spaces_of_edits(live, tmp_path):
    edit_stream(live, called(live.labels.names[0], "other"), LIMITS)
    assert copy_stream(live.folder, tmp_path / "copy")
    copy = Stream(tmp_path / "copy", live.config, live.durability)
    assert copy.labels.fingerprint == live.labels.fingerprint
    assert same(flat(copy.readers), flat(live.readers))
    copy.abandon()


def test_names_beyond_the_limit_are_refused(live):
    with pytest.raises(ServiceError, match="expected at most 2 names"):
        edit_stream(live, called(live.labels.names[0], "other"), Limits(names=2))
    assert live.labels.names == LABELS.names


def test_numbers_of_groups_that_an_edit_overtook_are_not_kept(live, monkeypatch):
    def overtaken(session, words):
        found = group(session, words)
        edit_stream(live, called(live.labels.names[0], "other"), LIMITS)
        return found

    monkeypatch.setattr("unseen.serve.stream.kept.group", overtaken)
    assert stream_groups(live)["edit"] == 0
    assert not live.readers.reservoir.images.group.any()
    monkeypatch.undo()
    found = stream_groups(live)
    assert found["edit"] == 1
    assert found["groups"]
    assert live.readers.reservoir.images.group.any()
