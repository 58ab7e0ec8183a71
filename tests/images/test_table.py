"""Images in tables: Parquet, Arrow, Lance."""

import pytest

from helpers.pictures import png, shades
from unseen.errors import DataError
from unseen.images import find_images

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("struct", [True, False])
def test_images_and_labels_of_a_table_are_read_and_damaged_cells_are_skipped(tmp_path, struct):
    files = [png(10), png(20), b"no picture", png(40), None]
    cells = [{"bytes": data, "path": "x"} for data in files] if struct else files
    table = pyarrow.table({"id": [1, 2, 3, 4, 5], "image": cells, "label": ["a", "b", "a", "b", None]})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    assert shades(tmp_path / "t.parquet") == [10, 20, "not an image of a supported format", 40, "empty file"]
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


def test_a_folder_that_datasets_saved_is_read(tmp_path):
    batches = [
        pyarrow.record_batch({"image": [{"bytes": png(shade), "path": None} for shade in part], "label": list(part)})
        for part in ((10, 20), (30,))
    ]
    (tmp_path / "train").mkdir()
    with pyarrow.ipc.new_stream(tmp_path / "train" / "data-00000-of-00001.arrow", batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    (tmp_path / "train" / "state.json").write_text("{}")
    assert shades(tmp_path) == [10, 20, 30]
    assert [entry.label for entry in find_images(tmp_path)] == ["10", "20", "30"]
    (tmp_path / "train" / "data-00000-of-00001.arrow").write_bytes(b"ARROW1 or not")
    with pytest.raises(DataError, match="expected an Arrow file"):
        find_images(tmp_path)


def test_a_lance_table_is_read_and_another_version_is_another_table(tmp_path):
    lance = pytest.importorskip("lance")
    where = tmp_path / "t.lance"
    lance.write_dataset(pyarrow.table({"image": [png(shade % 256) for shade in range(300)]}), where)
    first = list(find_images(where))
    assert [entry.read().pixels.getpixel((0, 0))[0] for entry in (first[0], first[255], first[299])] == [0, 255, 43]
    lance.write_dataset(pyarrow.table({"image": [png(7)]}), where, mode="append")
    second = list(find_images(where))
    assert len(second) == 301
    assert second[300].read().pixels.getpixel((0, 0))[0] == 7
    assert second[0].identity != first[0].identity
    (tmp_path / "u.lance").mkdir()
    with pytest.raises(DataError, match="expected a Lance table"):
        find_images(tmp_path / "u.lance")
