"""Object stores and Parquet: pictures in, features out, through pyarrow and fsspec."""

from __future__ import annotations

import io
import sys
import tarfile

import pytest
import torch
from PIL import Image as Pillow

from helpers.streams import unit
from helpers.tiny_models import ColourEncoder
from unseen.errors import DataError, MissingExtra, SettingError
from unseen.features import FeatureCache, encode_images, load_features
from unseen.images import Skipped, find_images, read_images
from unseen.storage.remote import Remote, location

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Pillow.new("RGB", (4, 4), (shade, 100, 50)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def bucket(request):
    """Return the URI of an empty bucket in memory."""
    store = fsspec.filesystem("memory")
    name = request.node.name
    yield f"memory://bucket/{name}"
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)


def put(uri: str, data: bytes) -> str:
    Remote(uri).write_bytes(data)
    return uri


def shades(source, **options):
    (batch,) = read_images(source, **options)
    return [row.reason if isinstance(row, Skipped) else row.pixels.getpixel((0, 0))[0] for row in batch.rows]


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
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for shade in (40, 50):
            member = tarfile.TarInfo(f"{shade}.png")
            member.size = len(png(shade))
            tar.addfile(member, io.BytesIO(png(shade)))
    put(f"{bucket}/archives/a.tar", packed.getvalue())
    assert shades(f"{bucket}/archives") == [40, 50]  # a folder without pictures stands for its archives
    entry = next(iter(find_images(f"{bucket}/photos")))
    assert entry.path == f"{bucket}/photos/10.png"
    assert entry.identity.split(":")[0] == str(len(png(10)))


def test_what_is_not_there_is_said(bucket):
    with pytest.raises(DataError, match="got nothing at"):
        shades(f"{bucket}/nothing")
    with pytest.raises(DataError, match="that pyarrow or fsspec can open"):
        shades("nosuchstore://bucket/a.png")
    assert shades(put(f"{bucket}/list.txt", b"gone.png 1"))[0].startswith("cannot be opened")


@pytest.mark.parametrize("struct", [True, False])
def test_pictures_in_a_table_with_labels_and_damage(tmp_path, struct):
    files = [png(10), png(20), b"no picture", png(40), None]
    cells = [{"bytes": data, "path": "x"} for data in files] if struct else files
    table = pyarrow.table({"id": [1, 2, 3, 4, 5], "image": cells, "label": ["a", "b", "a", "b", None]})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    assert shades(tmp_path / "t.parquet") == [10, 20, "not an image Pillow can read", 40, "empty file"]
    entries = list(find_images(tmp_path / "t.parquet"))
    assert [entry.label for entry in entries] == ["a", "b", "a", "b", None]
    assert entries[3].path == f"{tmp_path / 't.parquet'}#3"
    assert len({entry.identity for entry in entries}) == 5


def test_a_table_without_pictures_and_a_damaged_one_are_refused(tmp_path):
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="expected a column of encoded pictures"):
        find_images(tmp_path / "t.parquet")
    (tmp_path / "u.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(DataError, match="expected a Parquet file"):
        find_images(tmp_path / "u.parquet")


@pytest.mark.parametrize("form", ["safetensors", "parquet"])
@pytest.mark.parametrize("remote", [True, False])
def test_features_come_back_from_either_format_and_place(bucket, tmp_path, form, remote):
    for shade in (10, 60, 90):
        (tmp_path / f"{shade}.png").write_bytes(png(shade))
    output = bucket if remote else str(tmp_path / "features")
    encoder = ColourEncoder()
    list(encode_images(find_images(tmp_path), encoder, FeatureCache(output, encoder, form=form), size=2))
    found = load_features(output)
    assert [key.rpartition("/")[2] for key in found.keys] == ["10.png", "60.png", "90.png"]
    assert torch.equal(found.z, ColourEncoder().images([e.read() for e in find_images(tmp_path)]))
    again = FeatureCache(output, encoder)
    assert all(map(again.has, find_images(tmp_path)))
    assert found.column("folder") == (str(tmp_path),) * 3
    with pytest.raises(SettingError, match="expected a column out of folder, got 'camera'"):
        found.column("camera")


def test_a_damaged_parquet_shard_is_refused(tmp_path):
    encoder = ColourEncoder()
    (tmp_path / "a.png").write_bytes(png(10))
    list(encode_images(find_images(tmp_path), encoder, FeatureCache(tmp_path / "f", encoder, form="parquet")))
    (shard,) = (tmp_path / "f").glob("*.parquet")
    data = bytearray(shard.read_bytes())
    place = data.index(load_features(tmp_path / "f").z.numpy().tobytes())
    data[place] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"damaged one .* or delete .* and run unseen encode again"):
        load_features(tmp_path / "f")


def test_a_single_table_is_a_set_of_features_with_columns(tmp_path):
    z = unit(6, 4, dtype=torch.float32)
    table = pyarrow.table({"camera": list("aabbab"), "features": z.tolist()})
    parquet.write_table(table, tmp_path / "z.parquet")
    found = load_features(tmp_path / "z.parquet")
    torch.testing.assert_close(found.z, z)
    assert found.column("camera") == tuple("aabbab")
    assert found.keys[0] == "z/0"
    parquet.write_table(pyarrow.table({"camera": [1]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="expected a column 'z' or 'features'"):
        load_features(tmp_path / "y.parquet")


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    for name in ("pyarrow", "pyarrow.parquet", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(MissingExtra, match=r"pip install 'unseen\[ray\]'"):
        find_images(tmp_path / "t.parquet")
    with pytest.raises(MissingExtra, match=r"pip install 'unseen\[ray\]'"):
        find_images("nowhere://bucket/photos")
