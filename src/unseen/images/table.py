"""Parquet: tables that hold pictures, and shards that hold features."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import DataError, ImageError, MissingExtra
from unseen.storage.files import replacing
from unseen.storage.remote import Location, location

PICTURES = ("image", "img", "picture", "bytes", "jpg", "jpeg", "png", "webp", "content", "data")
LABELS = ("label", "cls", "class", "fine_label")
VECTORS = ("z", "features")
ROW = ("key", "identity", "label", "index")  # what a shard says of each vector

_one_reader = threading.Lock()


class Cell(NamedTuple):
    """Where one picture of a table lies."""

    group: int
    offset: int
    label: str | None


def cells(path: Location) -> tuple[str, Iterator[Cell]]:
    """Return which column holds the pictures, and the place and label of each in order."""
    with path.open("rb") as source:
        table = _opened(source, path)
        schema = table.schema_arrow
        column = next((name for name in PICTURES if name in schema.names and _holds_bytes(schema.field(name).type)), "")
        if not column:
            raise DataError(
                f"expected a column of encoded pictures ({', '.join(PICTURES)}), got {', '.join(schema.names)} "
                f"in {path}; rename the column with the bytes"
            )
        label = next((name for name in LABELS if name in schema.names), None)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        labels = table.read([label]).column(label).to_pylist() if label else [None] * sum(sizes)
    places = ((group, offset) for group, size in enumerate(sizes) for offset in range(size))
    words = (None if value is None else str(value) for value in labels)
    return column, (Cell(*place, word) for place, word in zip(places, words, strict=True))


def cell_bytes(path: str, identity: str, column: str, group: int, offset: int) -> bytes:
    """Return the encoded picture in one cell; neighbours are asked for next, so their group stays in memory."""
    with _one_reader:
        values = _group(path, identity, column, group)
    value = values[offset].as_py()
    data = value.get("bytes") if isinstance(value, dict) else value
    return data or b""


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


def write_shard(path: Path, z: Float[Tensor, "n d"], rows: Sequence[dict[str, Any]], metadata: dict[str, str]) -> None:
    """Write vectors and what is known of each as one table, whole or not at all, with a checksum per page."""
    arrow, parquet = _import("pyarrow"), _import("pyarrow.parquet")
    flat = arrow.array(z.float().cpu().contiguous().flatten().numpy())
    kinds = {"key": arrow.string(), "identity": arrow.string(), "label": arrow.string(), "index": arrow.int64()}
    columns = {name: arrow.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
    columns["z"] = arrow.FixedSizeListArray.from_arrays(flat, z.shape[1])
    table = arrow.table(columns).replace_schema_metadata(metadata)
    with replacing(path) as temporary:
        # vectors do not compress and repeat no value: a dictionary would only cost time
        parquet.write_table(table, temporary, compression="none", use_dictionary=False, write_page_checksum=True)


def read_table(path: Path) -> tuple[Float[Tensor, "n d"], dict[str, list[Any]], dict[str, str]]:
    """Return the vectors of a Parquet file, its other columns and its metadata."""
    arrow, parquet = _import("pyarrow"), _import("pyarrow.parquet")
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"expected a Parquet file at {path}, got a damaged one ({error}); copy it again") from error
    name = next((name for name in VECTORS if name in table.column_names), None)
    if name is None:
        raise DataError(f"expected a column 'z' or 'features' in {path}, got {table.column_names}; rename it")
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    rest = {other: table.column(other).to_pylist() for other in table.column_names if other != name}
    return _matrix(table.column(name), path), rest, metadata


def _matrix(column: Any, path: Path) -> Tensor:
    flat = column.combine_chunks()
    values = (flat if not hasattr(flat, "chunks") else flat.chunk(0)).flatten().to_numpy(zero_copy_only=False)
    if not len(column) or len(values) % len(column):
        raise DataError(f"expected vectors of one width in {path}, got {len(values)} numbers in {len(column)} rows")
    return torch.tensor(values).reshape(len(column), -1)


def _opened(source: Any, path: Location) -> Any:
    arrow, parquet = _import("pyarrow"), _import("pyarrow.parquet")
    try:
        return parquet.ParquetFile(source)
    except arrow.ArrowException as error:
        raise DataError(f"expected a Parquet file at {path}, got {error}; download it again") from error


def _holds_bytes(kind: Any) -> bool:
    types = _import("pyarrow.types")
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra("pyarrow", "ray") from error
