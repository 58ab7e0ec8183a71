"""Object stores through pyarrow and fsspec."""

from __future__ import annotations

import sys

import pytest

from helpers.pictures import png, shades, tar_of
from unseen.errors import DataError, MissingExtra
from unseen.images import find_images
from unseen.storage.remote import RemotePath, location

pytest.importorskip("pyarrow")


def put(uri: str, data: bytes) -> str:
    RemotePath(uri).write_bytes(data)
    return uri


def test_a_location_is_a_path_unless_a_uri_says_otherwise(tmp_path):
    assert location("photos/a.png").name == "a.png"
    assert location(f"file://{tmp_path}") == tmp_path
    place = location("s3://bucket/photos?region=eu")
    assert str(place / "a.png") == "s3://bucket/photos/a.png?region=eu"
    assert ((place / "a.png").parent, (place / "a.png").suffix) == (place, ".png")


def test_folders_lists_and_tars_are_read_from_a_store(bucket):
    for shade in (10, 20, 30):
        put(f"{bucket}/photos/{shade}.png", png(shade))
    put(f"{bucket}/photos/notes.md", b"not a picture")
    assert shades(f"{bucket}/photos") == [10, 20, 30]
    assert shades(put(f"{bucket}/list.txt", f"photos/30.png 1\n{bucket}/photos/10.png 0".encode())) == [30, 10]
    put(f"{bucket}/archives/a.tar", tar_of({f"{shade}.png": png(shade) for shade in (40, 50)}))
    assert shades(f"{bucket}/archives") == [40, 50]  # a folder without pictures stands for its archives
    entry = next(iter(find_images(f"{bucket}/photos")))
    assert entry.path == f"{bucket}/photos/10.png"
    assert entry.identity.split(":")[0] == str(len(png(10)))


def test_missing_files_and_unknown_stores_are_reported(bucket):
    with pytest.raises(DataError, match="got nothing at"):
        shades(f"{bucket}/nothing")
    with pytest.raises(DataError, match="that pyarrow or fsspec can open"):
        shades("nosuchstore://bucket/a.png")
    assert shades(put(f"{bucket}/list.txt", b"gone.png 1"))[0].startswith("cannot be opened")


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    for name in ("pyarrow", "pyarrow.parquet", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(MissingExtra, match=r"unseen\[tables\].* pip install"):
        find_images(tmp_path / "t.parquet")
    with pytest.raises(MissingExtra, match=r"unseen\[tables\].* pip install"):
        find_images("nowhere://bucket/photos")
