"""Images in Parquet files."""

import pytest

from helpers.pictures import png
from unseen.errors import DataError
from unseen.images import Skipped, find_images, read_images

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def shades(source, **options):
    (batch,) = read_images(source, **options)
    return [row.reason if isinstance(row, Skipped) else row.pixels.getpixel((0, 0))[0] for row in batch.rows]


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
