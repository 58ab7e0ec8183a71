"""A folder of feature shards and the manifest that says which encoder it belongs to.

Shards are safetensors files; Parquet files, which unseen 0.2 wrote too, are read: a row is a vector with its key.
The manifest is written once. A row may carry the place of its image among the inputs (`index`), so that shards are
read in that order.
"""

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import DataError, EncoderError, StateError, import_extra
from unseen.storage.files import load_tensors, replacing, save_tensors
from unseen.storage.remote import Location, RemotePath, local_copy, local_draft

KIND = "unseen-features"
MANIFEST = "manifest.json"
FORMATS = ("safetensors", "parquet")
VECTOR_COLUMNS = ("z", "features", "embedding", "vector")
ROW_COLUMNS = ("key", "identity", "label", "index")  # beside each vector
Row = dict[str, Any]


def write_shard(place: Location, z: Float[Tensor, "n d"], rows: Sequence[Row], fingerprint: str) -> None:
    """Write vectors and what is known of each as one file, whole or not at all."""
    with local_draft(place) as local:
        header = json.dumps({"fingerprint": fingerprint, "rows": rows}, ensure_ascii=False)
        save_tensors(local, {"z": z.cpu().contiguous()}, kind=KIND, header=header)


def read_shards(folder: Location) -> Iterator[tuple[Float[Tensor, "n d"], list[Row]]]:
    """Yield the shards of a folder in the order of their names, every byte checked."""
    places: Sequence[Location] = (
        folder.files(recursive=False) if isinstance(folder, RemotePath) else list(folder.iterdir())
    )
    shards = [place for place in places if any(fnmatch(place.name, f"[0-9]*.{form}") for form in FORMATS)]
    for place in sorted(shards, key=lambda place: place.name):
        with local_copy(place) as local:
            try:
                yield _read_shard(local)
            except (StateError, DataError) as error:
                raise DataError(f"{error}; or delete {place.name} and run unseen encode again") from error


def _read_shard(path: Path) -> tuple[Tensor, list[Row]]:
    if path.suffix == ".parquet":
        z, columns, _ = read_parquet(path)
        values = zip(*map(columns.get, ROW_COLUMNS), strict=True)
        return z, [dict(zip(ROW_COLUMNS, row, strict=True)) for row in values]
    tensors, header = load_tensors(path, kind=KIND)
    return tensors["z"], json.loads(header)["rows"]


def claim_folder(folder: Location, encoder: str, fingerprint: str) -> None:
    """Write the manifest of a new folder, or check that the folder belongs to the same encoder."""
    path = folder / MANIFEST
    if not path.exists():
        if isinstance(folder, Path) and any(folder.glob("*.safetensors")):
            raise DataError(f"expected an empty folder or one with a {MANIFEST}, got {folder}; choose another folder")
        manifest = {"kind": KIND, "version": 1, "encoder": encoder, "fingerprint": fingerprint}
        with local_draft(path) as local, replacing(local) as temporary:
            temporary.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    found = read_manifest(path)
    if found["fingerprint"] != fingerprint:
        raise EncoderError(
            f"expected a cache of {encoder} ({fingerprint[:8]}), got one of {found['encoder']} "
            f"({found['fingerprint'][:8]}) at {folder}; choose another folder with -o, or the same --encoder"
        )


def read_manifest(path: Location) -> dict[str, str]:
    """The manifest of a feature folder: its kind, version, encoder and fingerprint."""
    try:
        manifest: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"expected a folder of features, got {path.parent} without a {MANIFEST} that can be read; "
            f"encode photos first: unseen encode {path.parent} -o features/"
        ) from error
    if manifest.get("kind") != KIND:
        raise DataError(f"expected a folder of unseen features, got {manifest.get('kind')!r} at {path.parent}")
    return manifest


def read_parquet(path: Path) -> tuple[Float[Tensor, "n d"], dict[str, list[Any]], dict[str, str]]:
    """The vectors of a Parquet file or a Lance data set, its other columns and its metadata."""
    arrow, parquet = import_extra("pyarrow", "tables"), import_extra("pyarrow.parquet", "tables")
    try:
        if path.suffix == ".lance":
            table = import_extra("lance", "lance").dataset(str(path)).to_table()
        else:
            table = parquet.read_table(path, page_checksum_verification=True)
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"expected a Parquet file at {path}, got a damaged one ({error}); copy it again") from error
    name = next((name for name in VECTOR_COLUMNS if name in table.column_names), None)
    if name is None:
        raise DataError(
            f"expected a column out of {', '.join(VECTOR_COLUMNS)} in {path}, got {table.column_names}; rename it"
        )
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    rest = {other: table.column(other).to_pylist() for other in table.column_names if other != name}
    return _matrix(table.column(name), path), rest, metadata


def _matrix(column: Any, path: Path) -> Float[Tensor, "n d"]:
    flat = column.combine_chunks()
    values = (flat if not hasattr(flat, "chunks") else flat.chunk(0)).flatten().to_numpy(zero_copy_only=False)
    if not len(column) or len(values) % len(column):
        raise DataError(f"expected vectors of one width in {path}, got {len(values)} numbers in {len(column)} rows")
    return torch.tensor(values).reshape(len(column), -1)
