"""Encode uploaded images and names, with an encoder that is loaded when it is first needed."""

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
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, load_encoder
from unseen.encoders import Encoder
from unseen.errors import EncoderError, ImageError, LabelError, ServiceError, UnseenError, import_extra
from unseen.images import Image
from unseen.images.decode import decode
from unseen.images.thumbnail import jpeg_thumbnail
from unseen.serve.settings import Limits
from unseen.serve.work.batcher import MicroBatcher
from unseen.serve.work.fair_pool import FairThreadPool

CHUNK = 8  # images of one owner that are encoded before another owner's
SIDE = 96  # pixels of a thumbnail's longer side


class RequiredEncoder(NamedTuple):
    """The encoder whose vectors a label space takes; "" is any of that width."""

    dim: int
    name: str

    @classmethod
    def of(cls, labels: LabelSpace) -> RequiredEncoder:
        """Return what a label space requires."""
        return cls(labels.dim, labels.encoder)

    def check(self, encoder: Encoder) -> None:
        """Refuse an encoder of another width or name."""
        if encoder.dim != self.dim or self.name not in ("", encoder.name):
            raise ServiceError(
                422,
                f"expected images for the encoder {self.name or 'of this label space'} of width {self.dim}, got "
                f"{encoder.name} of width {encoder.dim}; start the service with that --encoder or send features",
            )


@dataclass(frozen=True)
class ImageBatch:
    """Image files of one request, the first of them numbered `first`."""

    files: Sequence[bytes]
    first: int
    required: RequiredEncoder

    def __len__(self) -> int:
        return len(self.files)


class EncodedImages(NamedTuple):
    """A vector and a small JPEG per image."""

    z: Float[Tensor, "n d"]
    thumbnails: tuple[bytes, ...]


class ImageEncoder:
    """One encoder for all streams of a service, or none.

    Encoding and mining have low-priority threads of their own that serve owners round-robin, so streams that are sent
    vectors, and requests that only read, go on meanwhile.
    """

    def __init__(self, name: str | None, limits: Limits) -> None:
        self.name, self.limits = name, limits
        spare = max(1, len(os.sched_getaffinity(0)) - 1)  # cores left beside the one that serves
        self._encoding = FairThreadPool(1, "encode", compute=spare, nice=2)
        self._mining = FairThreadPool(1, "mine", compute=spare, nice=5)
        self._batchers: dict[str, MicroBatcher[ImageBatch, EncodedImages]] = {}
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
        work = partial(self._build_space, names, negatives)
        return await asyncio.get_running_loop().run_in_executor(self._mining.executor(owner), work)

    async def encode(self, owner: str, files: Sequence[bytes], required: RequiredEncoder) -> EncodedImages:
        """Return a vector and a thumbnail per image; refuse the request if one cannot be read, naming it."""
        if owner not in self._batchers:
            executor = self._encoding.executor(owner)
            self._batchers[owner] = MicroBatcher(self.encode_block, executor, block=CHUNK, queue=self.limits.queue)
        starts = range(0, len(files), CHUNK)
        parts = [await self._batchers[owner](ImageBatch(files[at : at + CHUNK], at, required)) for at in starts]
        return EncodedImages(torch.cat([part.z for part in parts]), tuple(t for part in parts for t in part.thumbnails))

    def encode_block(self, batches: Sequence[ImageBatch]) -> list[EncodedImages | Exception]:
        """Return the encoded images of each request, or the error of a request that has an unreadable one."""
        decoded: list[list[Image] | Exception] = [self._decode(batch) for batch in batches]
        images = [image for one in decoded if isinstance(one, list) for image in one]
        vectors = self.encoder().images(images).cpu() if images else torch.empty(0, 0)
        encoded: list[EncodedImages | Exception] = []
        for one in decoded:
            if isinstance(one, list):
                z, vectors = vectors[: len(one)], vectors[len(one) :]
                encoded.append(EncodedImages(z, tuple(jpeg_thumbnail(image.pixels, SIDE) for image in one)))
            else:
                encoded.append(one)
        return encoded

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        self._encoding.close()
        self._mining.close()

    def _build_space(self, names: Sequence[str], negatives: int) -> LabelSpace:
        return LabelSpace.build(names, self.encoder(), negatives=negatives)

    def _decode(self, batch: ImageBatch) -> list[Image] | Exception:
        try:
            images = [self._decode_one(number, data) for number, data in enumerate(batch.files, batch.first)]
            batch.required.check(self.encoder())
            return images
        except UnseenError as error:
            return error

    def _decode_one(self, number: int, data: bytes) -> Image:
        try:
            check_pixels(data, self.limits.pixels)
            return Image(f"image {number}", decode(data))
        except ImageError as error:
            raise ImageError(f"expected images that can be read, got image {number}: {error}; leave it out") from error


def content_digest(files: Sequence[bytes]) -> bytes:
    """Return a hash of uploaded images: their vectors can differ in the last bit from one encoding to the next."""
    digest = hashlib.blake2b(digest_size=16)
    for data in files:
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def check_pixels(data: bytes, most: int) -> None:
    """Refuse an image by the size its header claims, before any pixel is unpacked."""
    pillow = import_extra("PIL.Image", "encode")
    try:
        with pillow.open(io.BytesIO(data)) as picture:
            width, height = picture.size
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"not an image ({type(error).__name__})") from error
    if width * height > most:
        raise ImageError(f"{width} x {height} pixels where {most:,} are allowed")
