"""Features in Parquet files and in object stores."""

import json

import pytest
import torch

from helpers.pictures import png
from helpers.streams import unit
from helpers.tiny_models import ColourEncoder
from unseen.errors import DataError, SettingError
from unseen.features import FeatureCache, encode_images, load_features
from unseen.images import find_images
from unseen.storage.files import load_tensors

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def as_parquet(folder):
    """The shards of a folder as unseen 0.2 wrote them where Parquet was asked for."""
    for place in folder.glob("*.safetensors"):
        tensors, header = load_tensors(place, kind="unseen-features")
        rows = [{"index": None} | row for row in json.loads(header)["rows"]]
        table = pyarrow.Table.from_pylist(rows).append_column("z", pyarrow.array(list(tensors["z"].numpy())))
        options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
        parquet.write_table(table, place.with_suffix(".parquet"), **options)
        place.unlink()


@pytest.mark.parametrize("remote", [True, False])
def test_features_come_back_from_either_format_and_place(bucket, tmp_path, remote):
    for shade in (10, 60, 90):
        (tmp_path / f"{shade}.png").write_bytes(png(shade))
    output = bucket if remote else str(tmp_path / "features")
    encoder = ColourEncoder()
    list(encode_images(find_images(tmp_path), encoder, FeatureCache(output, encoder), size=2))
    if not remote:
        as_parquet(tmp_path / "features")
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
    list(encode_images(find_images(tmp_path), encoder, FeatureCache(tmp_path / "f", encoder)))
    as_parquet(tmp_path / "f")
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
    with pytest.raises(DataError, match="expected a column out of z, features"):
        load_features(tmp_path / "y.parquet")
