"""Samples in binary files: safetensors and Arrow, read without being trusted."""

import struct
from typing import Any

import numpy as np
import safetensors.torch
from jaxtyping import Float
from safetensors import SafetensorError

from unseen.errors import FeatureError, ServiceError, import_extra
from unseen.serve.work.time_slices import let_others_run

SAFETENSORS, ARROW = "application/vnd.safetensors", "application/vnd.apache.arrow.stream"
COLUMN, KEY = "features", "key"
SCHEMA_MESSAGE, BATCH_MESSAGE = 1, 3  # kinds of messages in an Arrow stream; dictionaries are not needed here


def from_safetensors(body: bytes) -> Float[np.ndarray, "n d"]:
    """The tensor `features` of a safetensors file."""
    try:
        found = safetensors.torch.load(body)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise FeatureError(f"expected a safetensors file, got a damaged one ({error}); save it again") from error
    if COLUMN not in found or not found[COLUMN].is_floating_point() or found[COLUMN].ndim != 2:
        raise FeatureError(f"expected one tensor `{COLUMN}` of shape [n, d] in floats, got {sorted(found)}; rename it")
    return found[COLUMN].float().numpy()


def from_arrow(body: bytes, most: int) -> tuple[Float[np.ndarray, "n d"], list[str | None]]:
    """The column `features` of an Arrow stream, lists of floats of one length, and its column `key` if any."""
    pyarrow = import_extra("pyarrow", "tables")
    try:
        table = _read(pyarrow, body, most)
        if table.num_rows > most:  # rows without a vector, or of nulls, take no bytes in the body
            raise ServiceError(413, f"expected 1 to {most} samples, got {table.num_rows:,}; send fewer", "batch")
        rows = table.column(COLUMN).combine_chunks()
        if not hasattr(rows, "flatten"):
            raise ValueError(f"a column of {rows.type}")
        width = len(rows.flatten()) // max(1, len(rows))
        flat = rows.cast(pyarrow.list_(pyarrow.float32(), width)).flatten()
        keys = table.column(KEY).cast(pyarrow.string()).to_pylist() if KEY in table.column_names else []
    except (pyarrow.ArrowException, OSError, KeyError, ValueError, struct.error, IndexError) as error:
        raise FeatureError(
            f"expected an Arrow stream with a column `{COLUMN}` of lists of floats, got {str(error)[:200]}; "
            "write it without compression and dictionaries"
        ) from error
    if flat.null_count or not width:
        raise FeatureError(f"expected numbers in `{COLUMN}`, got none; leave out what has no vector")
    return flat.to_numpy().reshape(-1, width), keys


def _read(pyarrow: Any, body: bytes, most: int) -> Any:
    """The table of an Arrow stream; a small body that says it is a large one is refused, not expanded."""
    reader = pyarrow.ipc.MessageReader.open_stream(body)
    for number, message in enumerate(reader):
        let_others_run()
        if number > most:  # empty ones would be joined by the hundred thousand
            raise ServiceError(413, f"expected at most {most} batches of rows, got more; join them", "batch")
        if not is_plain(bytes(message.metadata)):
            raise ValueError("compressed or encoded parts")
    table = pyarrow.ipc.open_stream(body).read_all()
    table.validate(full=True)
    return table


def is_plain(metadata: bytes) -> bool:
    """Whether an Arrow message is a schema or a batch without compression, by its flatbuffer alone."""
    message = struct.unpack_from("<I", metadata)[0]
    kind_at, header_at = _field(metadata, message, 1), _field(metadata, message, 2)
    kind = metadata[kind_at] if kind_at else 0
    if kind == SCHEMA_MESSAGE:
        return True
    if kind != BATCH_MESSAGE or not header_at:
        return False
    batch = header_at + struct.unpack_from("<I", metadata, header_at)[0]
    return not _field(metadata, batch, 3)  # of a record batch: length, nodes, buffers, compression


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer table lies, 0 where it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    if 4 + 2 * number >= size:
        return 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def unsupported(media: str, known: list[str]) -> ServiceError:
    """The error for a media type that is not read."""
    return ServiceError(415, f"expected {', '.join(known)} or image/*, got {media!r}; set Content-Type")
