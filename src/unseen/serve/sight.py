"""Turn uploaded images and names into vectors, with an encoder that is loaded when it is first needed."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unseen import LabelSpace, load_encoder
from unseen.encoders import Encoder
from unseen.errors import EncoderError, ImageError, LabelError, MissingExtra, ServiceError, UnseenError
from unseen.images import Image
from unseen.images.decode import decode
from unseen.serve.gather import Gather
from unseen.serve.limits import Limits
from unseen.serve.turns import Turns

CHUNK = 8  # images an owner may have encoded before it is another's turn
SIDE = 96  # pixels of a thumbnail's longer side


@dataclass(frozen=True)
class Look:
    """Some images of one request, the first of them numbered `first`, for a stream over `space`."""

    files: Sequence[bytes]
    first: int
    space: LabelSpace

    def __len__(self) -> int:
        return len(self.files)


class Looked(NamedTuple):
    """A vector and a small JPEG per image."""

    z: Tensor
    pictures: tuple[bytes, ...]


class Sight:
    """One encoder for all streams of a service, or none.

    Encoding and mining have threads of their own that yield to others, and owners take turns on them: streams that are
    sent vectors go on meanwhile, and so does everything that only asks.
    """

    def __init__(self, name: str | None, limits: Limits) -> None:
        self.name, self.limits = name, limits
        spare = max(1, len(os.sched_getaffinity(0)) - 1)  # cores left beside the one that serves
        self._encoding = Turns(1, "encode", compute=spare, nice=2)
        self._mining = Turns(1, "mine", compute=spare, nice=5)
        self._gathers: dict[str, Gather[Look, Looked]] = {}
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None

    def encoder(self) -> Encoder:
        """Return the encoder; say what to do when there is none."""
        with self._lock:
            if self.name is None:
                raise EncoderError(
                    "expected an encoder for images and names, got a service without one; "
                    "start it with `unseen serve --encoder NAME`, or send features and a label space"
                )
            self._encoder = self._encoder or load_encoder(self.name)
            return self._encoder

    async def space(self, owner: str, names: Sequence[str], negatives: int) -> LabelSpace:
        """Return a label space of `names` with mined negatives."""
        if not 0 < len(names) <= self.limits.names:
            raise LabelError(f"expected 1 to {self.limits.names} names, got {len(names)}; pass the classes you know")
        work = partial(self._built, names, negatives)
        return await asyncio.get_running_loop().run_in_executor(self._mining.of(owner), work)

    async def images(self, owner: str, files: Sequence[bytes], space: LabelSpace) -> Looked:
        """Return a vector and a thumbnail per image; refuse the request if one cannot be read, naming it."""
        if owner not in self._gathers:
            turn = self._encoding.of(owner)
            self._gathers[owner] = Gather(self.look, turn, block=CHUNK, queue=self.limits.queue)
        starts = range(0, len(files), CHUNK)
        looked = [await self._gathers[owner](Look(files[at : at + CHUNK], at, space)) for at in starts]
        return Looked(torch.cat([one.z for one in looked]), tuple(p for one in looked for p in one.pictures))

    def look(self, parts: Sequence[Look]) -> list[Looked | Exception]:
        """Return what is seen in the images of several requests, or what is wrong with those of one."""
        read: list[list[Image] | Exception] = [self._read(part) for part in parts]
        whole = [image for images in read if isinstance(images, list) for image in images]
        vectors = self.encoder().images(whole).cpu() if whole else torch.empty(0, 0)
        seen: list[Looked | Exception] = []
        for images in read:
            if isinstance(images, list):
                z, vectors = vectors[: len(images)], vectors[len(images) :]
                seen.append(Looked(z, tuple(map(thumbnail, images))))
            else:
                seen.append(images)
        return seen

    def close(self) -> None:
        """Finish what is at work."""
        self._encoding.close()
        self._mining.close()

    def _built(self, names: Sequence[str], negatives: int) -> LabelSpace:
        return LabelSpace.build(names, self.encoder(), negatives=negatives)

    def _read(self, part: Look) -> list[Image] | Exception:
        try:
            pictures = [self._picture(number, data) for number, data in enumerate(part.files, part.first)]
            self._fits(part.space)
            return pictures
        except UnseenError as error:
            return error

    def _fits(self, space: LabelSpace) -> None:
        encoder = self.encoder()
        if encoder.dim != space.dim or space.encoder not in ("", encoder.name):
            raise ServiceError(
                422,
                f"expected images for the encoder {space.encoder or 'of this label space'} of width {space.dim}, got "
                f"{encoder.name} of width {encoder.dim}; start the service with that --encoder or send features",
            )

    def _picture(self, number: int, data: bytes) -> Image:
        try:
            _measure(data, self.limits.pixels)
            return Image(f"image {number}", decode(data))
        except ImageError as error:
            raise ImageError(f"expected images that can be read, got image {number}: {error}; leave it out") from error


def thumbnail(image: Image) -> bytes:
    """Return a small JPEG for the page."""
    small = image.pixels.copy()
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "jpeg", quality=80)
    return file.getvalue()


def asked(files: Sequence[bytes]) -> bytes:
    """Return a hash of uploaded images: their vectors can differ in the last bit from one encoding to the next."""
    digest = hashlib.blake2b(digest_size=16)
    for data in files:
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _measure(data: bytes, most: int) -> None:
    """Refuse an image by the size its header claims, before any pixel is unpacked."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra("pillow", "encode") from error
    try:
        with PIL.Image.open(io.BytesIO(data)) as picture:
            width, height = picture.size
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"not an image ({type(error).__name__})") from error
    if width * height > most:
        raise ImageError(f"{width} x {height} pixels where {most:,} are allowed")
