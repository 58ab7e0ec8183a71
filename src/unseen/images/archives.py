"""Many pictures in one file: the rows of a table, the members of a tar, the frames of a video."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from unseen.errors import DataError, ImageError, first_line, import_extra
from unseen.images.decode import IMAGE_SUFFIXES
from unseen.images.entry import Entry, file_identity, key_of
from unseen.storage.remote import Location, RemotePath, location

LANCE = ".lance"  # a folder
TABLE_SUFFIXES = frozenset({".parquet", ".arrow", LANCE})
LANCE_ROWS = 256  # of a group
IMAGE_COLUMNS = ("image", "img", "picture", "bytes", "jpg", "jpeg", "png", "webp", "content", "data")
LABEL_COLUMNS = ("label", "cls", "class", "fine_label")

_one_reader = threading.Lock()


def tar_entries(path: Location) -> Iterator[Entry]:
    """Read a webdataset shard: pictures and, under the same key, their label as .cls or .txt."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as shard:
            members = [member for member in shard if member.isfile()]
            labels = {_key(m): _text(shard, m) for m in members if m.name.endswith((".txt", ".cls"))}
    except tarfile.TarError as error:
        raise DataError(f"expected a tar of images, got {error} in {path}; download it again") from error
    archive = path.absolute()
    for member in members:
        if Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
            identity = file_identity(path, member.offset_data, member.size)
            read = partial(_read_range, archive, member.offset_data, member.size)
            yield Entry(key_of(f"{path}/{member.name}"), identity, label=labels.get(_key(member)), data=read)


def _key(member: tarfile.TarInfo) -> str:
    folder, _, name = member.name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _text(shard: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = shard.extractfile(member)
    return file.read().decode("utf-8", "replace").strip() if file else ""


def _read_range(path: Location, offset: int, size: int) -> bytes:
    # by offset, so that threads need not share one position in the archive
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) < size:
        raise ImageError(f"damaged: archive ends {size - len(data)} bytes too early")
    return data


def video_entries(path: Location, stride: int) -> Iterator[Entry]:
    """Yield every `stride`-th frame of a video, decoded while the caller reads."""
    if isinstance(path, RemotePath):
        raise DataError(f"expected a video on this machine, got {path}; copy it here first")
    av = import_extra("av", "video")
    try:
        with av.open(str(path)) as video:
            for number, frame in enumerate(islice(video.decode(video=0), 0, None, stride)):
                index = number * stride
                yield Entry(f"{path}#{index}", file_identity(path, index), partial(lambda one: one, frame.to_image()))
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(f"expected a video, got {error} in {path}; check that it plays") from error


def table_entries(path: Location) -> Iterator[Entry]:
    """Read a table with a column of encoded pictures and perhaps one of labels."""
    with open_table(path) as table:
        names, types, sizes = table.schema.names, table.schema, table.sizes
        column = next((one for one in IMAGE_COLUMNS if one in names and _holds_bytes(types.field(one).type)), "")
        if not column:
            raise DataError(
                f"expected a column of encoded pictures ({', '.join(IMAGE_COLUMNS)}), got {', '.join(names)} "
                f"in {path}; rename the column with the bytes"
            )
        label = next((name for name in LABEL_COLUMNS if name in names), None)
        every = range(len(sizes)) if label else ()
        labels = [value for group in every for value in table.read(label or "", group).to_pylist()]
    identity, where = table_identity(path), str(path.absolute())
    places = ((group, offset) for group, size in enumerate(sizes) for offset in range(size))
    for row, place in enumerate(places):
        read = partial(_read_cell, where, identity, column, *place)
        word = None if label is None or labels[row] is None else str(labels[row])
        yield Entry(f"{path}#{row}", f"{identity}:{row}", label=word, data=read)


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


class TableFile(NamedTuple):
    """A table whose rows come in groups."""

    schema: Any
    sizes: list[int]  # rows of each group
    read: Callable[[str, int], Any]  # one column of a group


@contextmanager
def open_table(path: Location) -> Iterator[TableFile]:
    """Yield a table; what is none of its kind is an error that says so."""
    kind = {".parquet": "a Parquet file", LANCE: "a Lance table"}.get(path.suffix, "an Arrow file (format for streams)")
    arrow = import_extra("pyarrow", "tables")
    try:
        if path.suffix == LANCE:
            table = import_extra("lance", "lance").dataset(str(path))
            places = range(0, rows := table.count_rows(), LANCE_ROWS)
            sizes = [min(LANCE_ROWS, rows - start) for start in places]
            part = partial(table.to_table, limit=LANCE_ROWS)
            yield TableFile(table.schema, sizes, lambda name, i: part(columns=[name], offset=places[i]).column(name))
        elif path.suffix == ".parquet":
            with path.open("rb") as source:
                file = import_extra("pyarrow.parquet", "tables").ParquetFile(source)
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                yield TableFile(
                    file.schema_arrow, sizes, lambda name, i: file.read_row_group(i, columns=[name]).column(name)
                )
        else:  # the format that `Dataset.save_to_disk` writes; of a local file only what is read is loaded
            with arrow.memory_map(str(path)) if isinstance(path, Path) else path.open("rb") as source:
                stream = import_extra("pyarrow.ipc", "tables").open_stream(source)
                batches = list(stream)
                yield TableFile(stream.schema, list(map(len, batches)), lambda name, i: batches[i].column(name))
    except (arrow.ArrowException, ValueError) as error:
        raise DataError(f"expected {kind} at {path}, got {first_line(error)}; download it again") from error


def table_identity(path: Location) -> str:
    """A text that changes when the table does."""
    if path.suffix != LANCE:
        return file_identity(path)
    table = import_extra("lance", "lance").dataset(str(path))
    return f"{table.version}:{table.count_rows()}"
