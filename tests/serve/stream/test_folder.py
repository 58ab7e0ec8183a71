"""The data folder: one process at a time, and no half-made streams."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.commands import run
from helpers.service import CONFIG, LABELS, DataFolder, open_store
from unseen.errors import SettingError, StateError


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


@pytest.mark.parametrize("bad", ["file", "file/data"])
def test_a_data_folder_that_cannot_be_one_is_refused_in_a_sentence(tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="expected a writable folder"):
        DataFolder(tmp_path / bad)
    for words in (("serve", "--port", 0), ("keys", "add")):
        with pytest.raises(SettingError, match="expected a writable folder"):
            run(*words, "--data", tmp_path / bad)


def test_a_stream_that_was_moved_behind_a_link_is_opened_and_deleted_with_its_data(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        id = store.create(LABELS, CONFIG).config.id
    moved, link = tmp_path / "other disk", tmp_path / "data" / "streams" / id
    link.rename(moved)
    link.symlink_to(moved)
    with open_store(tmp_path / "data") as store:
        store.delete(store.entries[id])
    assert not moved.exists()
    assert not list(link.parent.iterdir())


def test_one_stream_under_two_names_is_opened_once(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        id = store.create(LABELS, CONFIG).config.id
    (tmp_path / "streams" / ("0" * 16)).symlink_to(tmp_path / "streams" / id)
    shutil.copytree(tmp_path / "streams" / id, tmp_path / "streams" / ("1" * 16))
    with open_store(tmp_path) as store:
        statuses = {name: entry.status for name, entry in store.entries.items()}
        assert statuses == {id: "ready", "0" * 16: "refused", "1" * 16: "refused"}
        for name in ("0" * 16, "1" * 16):
            assert id in store.entries[name].reason
            store.delete(store.entries[name])
        assert [path.name for path in (tmp_path / "streams").iterdir()] == [id]
        assert (tmp_path / "streams" / id / "stream.json").exists()
