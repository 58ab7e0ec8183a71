"""Three kinds of tables, read a group of rows at a time: Parquet, Arrow as Hugging Face datasets save it, and Lance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from unseen.errors import DataError, first_line, import_extra
from unseen.images.entry import file_identity
from unseen.storage.remote import Location

LANCE = ".lance"  # a folder
TABLE_SUFFIXES = frozenset({".parquet", ".arrow", LANCE})
LANCE_ROWS = 256  # of a group


class TableFile(Protocol):
    """A table whose rows come in groups."""

    schema: Any
    sizes: list[int]  # rows of each group

    def read(self, column: str, group: int) -> Any:
        """One column of a group."""

    def whole(self, column: str) -> list[Any]:
        """The values of one column of all rows."""


class _Parquet:
    def __init__(self, source: Any) -> None:
        self._table = import_extra("pyarrow.parquet", "tables").ParquetFile(source)
        self.schema = self._table.schema_arrow
        self.sizes = [self._table.metadata.row_group(group).num_rows for group in range(self._table.num_row_groups)]

    def read(self, column: str, group: int) -> Any:
        return self._table.read_row_group(group, columns=[column]).column(column)

    def whole(self, column: str) -> list[Any]:
        return list(self._table.read([column]).column(column).to_pylist())


class _Arrow:
    """Arrow's format for streams, which `Dataset.save_to_disk` writes; of a local file only what is read is loaded."""

    def __init__(self, source: Any) -> None:
        self._batches = import_extra("pyarrow.ipc", "tables").open_stream(source)
        self.schema, self._batches = self._batches.schema, list(self._batches)
        self.sizes = [batch.num_rows for batch in self._batches]

    def read(self, column: str, group: int) -> Any:
        return self._batches[group].column(column)

    def whole(self, column: str) -> list[Any]:
        return [value for batch in self._batches for value in batch.column(column).to_pylist()]


class _Lance:
    def __init__(self, path: Location) -> None:
        self._table = import_extra("lance", "lance").dataset(str(path))
        self.schema, rows = self._table.schema, self._table.count_rows()
        self.sizes = [min(LANCE_ROWS, rows - start) for start in range(0, rows, LANCE_ROWS)]

    def read(self, column: str, group: int) -> Any:
        return self._table.to_table(columns=[column], offset=group * LANCE_ROWS, limit=LANCE_ROWS).column(column)

    def whole(self, column: str) -> list[Any]:
        return list(self._table.to_table(columns=[column]).column(column).to_pylist())


@contextmanager
def open_table(path: Location) -> Iterator[TableFile]:
    """Yield a table; what is none of its kind is an error that says so."""
    kind = {".parquet": "a Parquet file", LANCE: "a Lance table"}.get(path.suffix, "an Arrow file (format for streams)")
    arrow = import_extra("pyarrow", "tables")
    try:
        if path.suffix == LANCE:
            yield _Lance(path)
        elif path.suffix == ".parquet":
            with path.open("rb") as source:
                yield _Parquet(source)
        else:
            with _open_or_map(path, arrow) as source:
                yield _Arrow(source)
    except (arrow.ArrowException, ValueError) as error:
        raise DataError(f"expected {kind} at {path}, got {first_line(error)}; download it again") from error


def table_identity(path: Location) -> str:
    """A text that changes when the table does."""
    if path.suffix != LANCE:
        return file_identity(path)
    table = import_extra("lance", "lance").dataset(str(path))
    return f"{table.version}:{table.count_rows()}"


def _open_or_map(path: Location, arrow: Any) -> Any:
    return arrow.memory_map(str(path)) if isinstance(path, Path) else path.open("rb")
