"""Images in the cells of a Parquet file, read by row group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from unseen.errors import DataError, ImageError, import_extra
from unseen.images.decode import decode
from unseen.images.entry import Entry, file_identity
from unseen.storage.remote import Location, location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

IMAGE_COLUMNS = ("image", "img", "picture", "bytes", "jpg", "jpeg", "png", "webp", "content", "data")
LABEL_COLUMNS = ("label", "cls", "class", "fine_label")

_one_reader = threading.Lock()


class Cell(NamedTuple):
    """Where one picture of a table lies."""

    group: int
    offset: int
    label: str | None


def table_entries(path: Location) -> Iterator[Entry]:
    """Read a Parquet file with a column of encoded pictures and perhaps one of labels."""
    identity, where = file_identity(path), str(path.absolute())
    column, cells = _cells(path)
    for row, cell in enumerate(cells):
        read = partial(_decode_cell, where, identity, column, cell.group, cell.offset)
        yield Entry(f"{path}#{row}", f"{identity}:{row}", read, cell.label)


def _cells(path: Location) -> tuple[str, Iterator[Cell]]:
    """Return which column holds the pictures, and the place and label of each in order."""
    with path.open("rb") as source:
        table = _opened(source, path)
        schema = table.schema_arrow
        column = next(
            (name for name in IMAGE_COLUMNS if name in schema.names and _holds_bytes(schema.field(name).type)), ""
        )
        if not column:
            raise DataError(
                f"expected a column of encoded pictures ({', '.join(IMAGE_COLUMNS)}), got {', '.join(schema.names)} "
                f"in {path}; rename the column with the bytes"
            )
        label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        labels = table.read([label]).column(label).to_pylist() if label else [None] * sum(sizes)
    places = ((group, offset) for group, size in enumerate(sizes) for offset in range(size))
    words = (None if value is None else str(value) for value in labels)
    return column, (Cell(*place, word) for place, word in zip(places, words, strict=True))


def _decode_cell(path: str, identity: str, column: str, group: int, offset: int) -> Picture:
    # neighbours are asked for next, so their group stays in memory
    with _one_reader:
        values = _group(path, identity, column, group)
    value = values[offset].as_py()
    data = value.get("bytes") if isinstance(value, dict) else value
    return decode(data or b"")


@lru_cache(maxsize=2)
def _group(path: str, identity: str, column: str, group: int) -> Any:
    place = location(path)
    try:
        with place.open("rb") as source:
            return _opened(source, place).read_row_group(group, columns=[column]).column(column)
    except OSError as error:
        raise ImageError(f"cannot be opened: {error}") from error
    except DataError as error:
        raise ImageError(f"damaged: {error}") from error


def _opened(source: Any, path: Location) -> Any:
    arrow, parquet = import_extra("pyarrow", "tables"), import_extra("pyarrow.parquet", "tables")
    try:
        return parquet.ParquetFile(source)
    except arrow.ArrowException as error:
        raise DataError(f"expected a Parquet file at {path}, got {error}; download it again") from error


def _holds_bytes(kind: Any) -> bool:
    types = import_extra("pyarrow.types", "tables")
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
