"""The data folder: one process at a time, and no half-made streams."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.service import LABELS, DataFolder, Settings, StreamConfig, StreamStore
from unseen.errors import StateError

SETTINGS = Settings(Path(), encoder=None)


def test_a_second_service_on_one_folder_is_refused(tmp_path: Path) -> None:
    first = DataFolder(tmp_path)
    with pytest.raises(StateError, match="only service"):
        DataFolder(tmp_path)
    first.close()
    DataFolder(tmp_path).close()


def test_half_made_and_half_deleted_streams_are_removed_at_start(tmp_path: Path) -> None:
    for name in (".new-1", ".old-2", "0" * 16, "stray"):
        (tmp_path / "streams" / name).mkdir(parents=True)
    folder = DataFolder(tmp_path)
    assert folder.stream_folders() == [tmp_path / "streams" / ("0" * 16)]
    assert sorted(path.name for path in (tmp_path / "streams").iterdir()) == ["0" * 16, "stray"]
    folder.close()


def test_a_stream_that_was_moved_behind_a_link_is_opened_and_deleted_with_its_data(tmp_path: Path) -> None:
    store = StreamStore(DataFolder(tmp_path / "data"), SETTINGS)
    id = store.create(LABELS, StreamConfig("", "", "*", "mcm")).config.id
    store.close()
    moved, link = tmp_path / "other disk", tmp_path / "data" / "streams" / id
    link.rename(moved)
    link.symlink_to(moved)
    store = StreamStore(DataFolder(tmp_path / "data"), SETTINGS)
    store.open_all()
    store.delete(store.entries[id])
    assert not moved.exists()
    assert not list(link.parent.iterdir())
    store.close()


def test_one_stream_under_two_names_is_opened_once(tmp_path: Path) -> None:
    store = StreamStore(DataFolder(tmp_path), SETTINGS)
    id = store.create(LABELS, StreamConfig("", "", "*", "mcm")).config.id
    store.close()
    (tmp_path / "streams" / ("0" * 16)).symlink_to(tmp_path / "streams" / id)
    shutil.copytree(tmp_path / "streams" / id, tmp_path / "streams" / ("1" * 16))
    store = StreamStore(DataFolder(tmp_path), SETTINGS)
    store.open_all()
    statuses = {name: entry.status for name, entry in store.entries.items()}
    assert statuses == {id: "ready", "0" * 16: "refused", "1" * 16: "refused"}
    for name in ("0" * 16, "1" * 16):
        assert id in store.entries[name].reason
        store.delete(store.entries[name])
    assert [path.name for path in (tmp_path / "streams").iterdir()] == [id]
    assert (tmp_path / "streams" / id / "stream.json").exists()
    store.close()
