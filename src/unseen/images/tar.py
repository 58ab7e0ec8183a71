"""Images in an uncompressed tar, read by their offset."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from unseen.errors import DataError, ImageError
from unseen.images.entry import Entry, file_identity, key_of
from unseen.images.kinds import IMAGE_SUFFIXES
from unseen.storage.remote import Location


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
            yield Entry.of_bytes(key_of(f"{path}/{member.name}"), identity, read, labels.get(_key(member)))


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
