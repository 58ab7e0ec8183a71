"""Local files, read whole with few calls: there are millions of small ones."""

import os
import stat
from dataclasses import dataclass

from unseen.errors import ImageError


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine, whose bytes a call returns; another process may be given its path instead."""

    path: str  # absolute

    def __call__(self) -> bytes:
        """What is in the file."""
        return read_local(self.path)


def read_local(path: str) -> bytes:
    """What is in a file; one that cannot be read is an `ImageError`."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise ImageError("not a file: a pipe, socket or device")  # reading it could wait for ever
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            return _read_whole(handle, found.st_size)
        finally:
            os.close(handle)
    except OSError as error:
        raise ImageError(f"cannot be opened: {error.strerror or error}") from error


def _read_whole(handle: int, size: int) -> bytes:
    data = os.read(handle, size + 1)
    if len(data) == size:  # the end, and no second call to see it
        return data
    parts = [data]
    while parts[-1]:
        parts.append(os.read(handle, 1 << 20))
    return b"".join(parts)
