"""What threads do with images on their way to a GPU: read, decode, resize, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.encoders.gpu.jpeg import PlainJpeg
from unseen.errors import ImageError
from unseen.images import Entry, Image, Skipped
from unseen.images.decode import decode
from unseen.images.files import LocalFile
from unseen.images.jpeg import plain_size
from unseen.images.plain_pool import PlainPool


class Prepared(NamedTuple):
    """An image with pixels for the encoder; without them where its vector is known. Its picture may be gone."""

    image: Image | Entry
    pixels: Tensor | None


class Undecoded(NamedTuple):
    """An image whose file is left to the GPU."""

    image: Entry
    file: PlainJpeg


ReadRow = Prepared | Undecoded | Skipped


def is_never_held(image: Image) -> bool:
    """False: every image is to be encoded."""
    return False


@dataclass(frozen=True)
class ImageReader:
    """Reads entries; of an image whose vector `is_held` no pixels are made."""

    prepare: Callable[[Sequence[Image]], Tensor]
    is_held: Callable[[Image], bool] = is_never_held
    keeps_pictures: bool = False
    leaves_plain: bool = False  # plain JPEG files to the GPU

    def read_all(self, entries: Sequence[Entry], pool: PlainPool | None = None) -> list[ReadRow]:
        """Some images in order; with a pool, plain files among them are read by its processes."""
        found = _read_elsewhere(entries, pool) if pool and self.leaves_plain else {}
        return [found[i] if i in found else self.read(entry) for i, entry in enumerate(entries)]

    def read(self, entry: Entry) -> ReadRow:
        """One image, or the reason why there is none."""
        if not self.leaves_plain or entry.data is None:
            return self._prepared(entry, entry.read())
        try:
            data = entry.data()
        except ImageError as error:
            return Skipped(entry.path, str(error))
        size = plain_size(data)
        return Undecoded(entry, PlainJpeg.of_bytes(data, *size)) if size else self.by_pillow(entry, data)

    def by_pillow(self, entry: Entry, data: bytes) -> Prepared | Skipped:
        """The image of an entry whose bytes have been read."""
        return self._prepared(entry, replace(entry, decode=partial(decode, data)).read())

    def _prepared(self, entry: Entry, image: Image | Skipped) -> Prepared | Skipped:
        if isinstance(image, Skipped):
            return image
        pixels = None if self.is_held(image) else self.prepare([image])[0]
        return Prepared(image if self.keeps_pictures else entry, pixels)


def _read_elsewhere(entries: Sequence[Entry], pool: PlainPool) -> dict[int, Undecoded]:
    """The plain files among local ones by their places, as views of one piece of memory."""
    local = [(i, entry.data.path) for i, entry in enumerate(entries) if isinstance(entry.data, LocalFile)]
    if not local:
        return {}
    files = pool.read([path for _, path in local])
    views = torch.from_numpy(files.data).split([size for size, _, _ in files.found])
    return {
        i: Undecoded(entries[i], PlainJpeg(view, width, height))
        for (i, _), (size, width, height), view in zip(local, files.found, views, strict=True)
        if size
    }
