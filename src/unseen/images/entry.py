"""What a source yields: an entry before decoding, an image or the reason why there is none after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from unseen.errors import ImageError
from unseen.images.decode import decode
from unseen.storage.remote import Location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MISSING = "missing"  # the identity of a file that is not there


@dataclass(frozen=True, eq=False)
class Image:
    """One picture, upright, in RGB."""

    path: str
    pixels: Picture
    label: str | None = None
    identity: str = ""


@dataclass(frozen=True)
class Skipped:
    """One picture that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Batch(Sequence[Image]):
    """The readable images of a batch as a sequence; `rows` holds the skipped ones too, in order of arrival."""

    rows: tuple[Image | Skipped, ...]

    @property
    def images(self) -> tuple[Image, ...]:
        """The readable ones."""
        return tuple(row for row in self.rows if isinstance(row, Image))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The unreadable ones."""
        return tuple(row for row in self.rows if isinstance(row, Skipped))

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Image, ...]: ...
    def __getitem__(self, index: int | slice) -> Image | tuple[Image, ...]:
        return self.images[index]


@dataclass(frozen=True)
class Entry:
    """A picture that has been found but not decoded; `identity` changes when the file does."""

    path: str
    identity: str
    decode: Callable[[], Picture] | None = None  # makes it, where there are no encoded bytes
    label: str | None = None
    data: Callable[[], bytes] | None = None  # reads its encoded bytes

    def read(self, least: int = 0) -> Image | Skipped:
        """The decoded picture, or the reason why there is none; `least` is that of `images.decode.decode`."""
        try:
            if self.data is not None:
                return Image(self.path, decode(self.data(), least=least), self.label, self.identity)
            assert self.decode is not None
            return Image(self.path, self.decode(), self.label, self.identity)
        except ImageError as error:
            return Skipped(self.path, str(error))


def key_of(path: Location | str) -> str:
    """The key of an image by its path; bytes that are no UTF-8, as old archives leave in names, are spelt out.

    >>> key_of(b"caf\\xe9.jpg".decode(errors="surrogateescape"))
    'caf\\\\udce9.jpg'
    """
    text = str(path)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def file_identity(path: Location | str, *inside: int) -> str:
    """A text that changes when the file does: size, time of change and, in an archive, the place inside."""
    try:
        stat = os.stat(path) if isinstance(path, str | Path) else path.stat()
    except OSError:
        return MISSING
    return ":".join(map(str, (stat.st_size, stat.st_mtime_ns, *inside)))
