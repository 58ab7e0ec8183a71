"""Vectors in Parquet files: one row per vector, its key and labels in further columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import DataError, import_extra
from unseen.storage.files import replacing

VECTOR_COLUMNS = ("z", "features")
ROW_COLUMNS = {"key": "string", "identity": "string", "label": "string", "index": "int64"}  # beside each vector


def write_parquet(
    path: Path, z: Float[Tensor, "n d"], rows: Sequence[dict[str, Any]], metadata: dict[str, str]
) -> None:
    """Write vectors and what is known of each as one table, whole or not at all, with a checksum per page."""
    arrow, parquet = import_extra("pyarrow", "tables"), import_extra("pyarrow.parquet", "tables")
    flat = arrow.array(z.float().cpu().contiguous().flatten().numpy())
    columns = {name: arrow.array([row.get(name) for row in rows], kind) for name, kind in ROW_COLUMNS.items()}
    columns["z"] = arrow.FixedSizeListArray.from_arrays(flat, z.shape[1])
    table = arrow.table(columns).replace_schema_metadata(metadata)
    with replacing(path) as temporary:
        # vectors do not compress and repeat no value: a dictionary would only cost time
        parquet.write_table(table, temporary, compression="none", use_dictionary=False, write_page_checksum=True)


def read_parquet(path: Path) -> tuple[Float[Tensor, "n d"], dict[str, list[Any]], dict[str, str]]:
    """The vectors of a Parquet file, its other columns and its metadata."""
    arrow, parquet = import_extra("pyarrow", "tables"), import_extra("pyarrow.parquet", "tables")
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"expected a Parquet file at {path}, got a damaged one ({error}); copy it again") from error
    name = next((name for name in VECTOR_COLUMNS if name in table.column_names), None)
    if name is None:
        raise DataError(f"expected a column 'z' or 'features' in {path}, got {table.column_names}; rename it")
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    rest = {other: table.column(other).to_pylist() for other in table.column_names if other != name}
    return _matrix(table.column(name), path), rest, metadata


def _matrix(column: Any, path: Path) -> Float[Tensor, "n d"]:
    flat = column.combine_chunks()
    values = (flat if not hasattr(flat, "chunks") else flat.chunk(0)).flatten().to_numpy(zero_copy_only=False)
    if not len(column) or len(values) % len(column):
        raise DataError(f"expected vectors of one width in {path}, got {len(values)} numbers in {len(column)} rows")
    return torch.tensor(values).reshape(len(column), -1)
