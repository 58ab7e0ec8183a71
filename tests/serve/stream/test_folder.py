"""The data folder: one process at a time, and no half-made streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.errors import StateError
from unseen.serve.stream.folder import DataFolder


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
