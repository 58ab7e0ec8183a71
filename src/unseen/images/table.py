"""Images in the cells of a table, read a group of rows at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

from unseen.errors import DataError, ImageError, import_extra
from unseen.images.entry import Entry
from unseen.images.table_files import open_table, table_identity
from unseen.storage.remote import Location, location

IMAGE_COLUMNS = ("image", "img", "picture", "bytes", "jpg", "jpeg", "png", "webp", "content", "data")
LABEL_COLUMNS = ("label", "cls", "class", "fine_label")

_one_reader = threading.Lock()


class Cell(NamedTuple):
    """Where one picture of a table lies."""

    group: int
    offset: int
    label: str | None


def table_entries(path: Location) -> Iterator[Entry]:
    """Read a table with a column of encoded pictures and perhaps one of labels."""
    column, cells = _cells(path)
    identity, where = table_identity(path), str(path.absolute())
    for row, cell in enumerate(cells):
        read = partial(_read_cell, where, identity, column, cell.group, cell.offset)
        yield Entry.of_bytes(f"{path}#{row}", f"{identity}:{row}", read, cell.label)


def _cells(path: Location) -> tuple[str, Iterator[Cell]]:
    """Which column holds the pictures, and the place and label of each in order."""
    with open_table(path) as table:
        schema = table.schema
        column = next(
            (name for name in IMAGE_COLUMNS if name in schema.names and _holds_bytes(schema.field(name).type)), ""
        )
        if not column:
            raise DataError(
                f"expected a column of encoded pictures ({', '.join(IMAGE_COLUMNS)}), got {', '.join(schema.names)} "
                f"in {path}; rename the column with the bytes"
            )
        label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
        sizes = table.sizes
        labels = table.whole(label) if label else [None] * sum(sizes)
    places = ((group, offset) for group, size in enumerate(sizes) for offset in range(size))
    words = (None if value is None else str(value) for value in labels)
    return column, (Cell(*place, word) for place, word in zip(places, words, strict=True))


def _read_cell(path: str, identity: str, column: str, group: int, offset: int) -> bytes:
    # neighbours are asked for next, so their group stays in memory
    with _one_reader:
        values = _group(path, identity, column, group)
    value = values[offset].as_py()
    data = value.get("bytes") if isinstance(value, dict) else value
    return data or b""


@lru_cache(maxsize=2)
def _group(path: str, identity: str, column: str, group: int) -> Any:
    place = location(path)
    try:
        with open_table(place) as table:
            return table.read(column, group)
    except OSError as error:
        raise ImageError(f"cannot be opened: {error}") from error
    except DataError as error:
        raise ImageError(f"damaged: {error}") from error


def _holds_bytes(kind: Any) -> bool:
    types = import_extra("pyarrow.types", "tables")
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
