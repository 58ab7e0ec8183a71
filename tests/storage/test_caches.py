"""Every cache of the project lies under $UNSEEN_CACHE."""

import re
from pathlib import Path

import pytest

import unseen
from unseen.storage.files import cache_dir

PLACES = {"linux": ".cache/unseen", "darwin": "Library/Caches/unseen", "win32": "AppData/Local/unseen"}


@pytest.mark.parametrize("platform", PLACES)
def test_without_the_variable_the_platform_decides(monkeypatch, tmp_path, platform):
    for name in ("UNSEEN_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_dir("a", "b") == tmp_path / PLACES[platform] / "a" / "b"


def test_only_the_storage_package_knows_where_caches_lie():
    source = Path(unseen.__file__).parent
    places = re.compile(r"XDG_CACHE_HOME|LOCALAPPDATA|Library/Caches|[\"'/]\.cache|UNSEEN_CACHE\"")
    found = [path.relative_to(source) for path in source.rglob("*.py") if places.search(path.read_text())]
    assert found == [Path("storage/files.py")]
