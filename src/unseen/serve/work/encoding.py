"""Encode uploaded images and names, with an encoder that is loaded when it is first needed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, load_encoder
from unseen.encoders import Encoder
from unseen.errors import DataError, EncoderError, ImageError, LabelError, ServiceError, UnseenError
from unseen.images import Image
from unseen.images.decode import BOUNDED_FORMATS, claimed_pixels, decode, jpeg_thumbnail
from unseen.labels import Examples, with_examples
from unseen.labels.prompts import described_templates
from unseen.progress import Progress, no_progress
from unseen.serve.settings import EVERYONE, Limits
from unseen.serve.work.batcher import MicroBatcher
from unseen.serve.work.fair_pool import FairThreadPool

CHUNK = 8  # images of usual size of one owner that are encoded before another owner's
USUAL = 4_000_000  # pixels; a larger image counts as several
SIDE = 96  # pixels of a thumbnail's longer side

T = TypeVar("T")


class RequiredEncoder(NamedTuple):
    """The encoder whose vectors a label space takes; "" is any of that width."""

    dim: int
    name: str

    @classmethod
    def of(cls, labels: LabelSpace) -> RequiredEncoder:
        """What a label space requires."""
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
    """Image files of one request, the first of them numbered `first`, and how many of usual size they count as."""

    files: Sequence[bytes]
    first: int
    required: RequiredEncoder
    cost: int

    def __len__(self) -> int:
        return self.cost


class EncodedImages(NamedTuple):
    """A vector and a small JPEG per image."""

    z: Float[Tensor, "n d"]
    thumbnails: tuple[bytes, ...]


class ImageEncoder:
    """One encoder for all streams of a service, or none.

    Encoding and mining have low-priority threads of their own that owners share, so streams that are sent vectors, and
    requests that only read, go on meanwhile. An owner decodes one chunk at a time: CHUNK images of usual size or one
    large image.
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
        """The encoder; say what to do when there is none."""
        with self._lock:
            if self.name is None:
                raise EncoderError(
                    "expected an encoder for images and names, got a service without one; "
                    "start it with `unseen serve --encoder NAME`, or send features and a label space"
                )
            self._encoder = self._encoder or load_encoder(self.name)
            return self._encoder

    async def space(
        self, owner: str, names: Sequence[str], negatives: int, *, progress: Progress = no_progress
    ) -> LabelSpace:
        """A label space of `names` with mined negatives."""
        if not 0 < len(names) <= self.limits.names:
            raise LabelError(f"expected 1 to {self.limits.names} names, got {len(names)}; pass the classes you know")
        work = partial(self._build_space, names, negatives, progress)
        return await asyncio.get_running_loop().run_in_executor(self._mining.executor(owner), work)

    async def taught(self, owner: str, labels: LabelSpace, examples: Examples, *, spare: int) -> LabelSpace:
        """A label space that examples have moved; at least `spare` of them set the threshold."""
        if len(examples) > self.limits.batch:
            raise DataError(
                f"expected at most {self.limits.batch} examples, got {len(examples)}; send fewer of each name"
            )
        work = partial(with_examples, labels, examples, spare=spare)
        return await asyncio.get_running_loop().run_in_executor(self._mining.executor(owner), work)

    async def name_vector(self, owner: str, labels: LabelSpace, name: str) -> Float[Tensor, " d"]:
        """The text vector of one more name for a label space, by its own prompt."""
        work = partial(self._encode_name, labels, name)
        return await asyncio.get_running_loop().run_in_executor(self._mining.executor(owner), work)

    def run_later(self, work: Callable[[], object]) -> None:
        """Do what nobody waits for in the thread that mines."""
        self._mining.submit(EVERYONE, work)

    async def encode(self, owner: str, files: Sequence[bytes], required: RequiredEncoder) -> EncodedImages:
        """A vector and a thumbnail per image; refuse the request if one cannot be read, naming it."""
        if owner not in self._batchers:
            executor = self._encoding.executor(owner)
            self._batchers[owner] = MicroBatcher(self.encode_block, executor, block=CHUNK, queue=self.limits.queue)
        costs = await asyncio.get_running_loop().run_in_executor(self._encoding.executor(owner), self._costs, files)
        chunks = [ImageBatch(files[at:end], at, required, sum(costs[at:end])) for at, end in chunk_bounds(costs)]
        parts = [await self._batchers[owner](chunk) for chunk in chunks]
        return EncodedImages(torch.cat([part.z for part in parts]), tuple(t for part in parts for t in part.thumbnails))

    def encode_block(self, batches: Sequence[ImageBatch]) -> list[EncodedImages | Exception]:
        """The encoded images of each request, or the error of a request that has an unreadable one."""
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
        """Leave what is at work: whoever asked has been answered or told to ask again, and mining takes minutes."""
        self._encoding.abandon()
        self._mining.abandon()

    def _build_space(self, names: Sequence[str], negatives: int, progress: Progress) -> LabelSpace:
        return LabelSpace.build(names, self.encoder(), negatives=negatives, progress=progress)

    def _encode_name(self, labels: LabelSpace, name: str) -> Float[Tensor, " d"]:
        RequiredEncoder.of(labels).check(self.encoder())
        return described_templates(labels.prompt).encode([name], self.encoder())[0].cpu()

    def _decode(self, batch: ImageBatch) -> list[Image] | Exception:
        try:
            files = enumerate(batch.files, batch.first)
            images = [Image(f"image {number}", self._numbered(decode, number, data)) for number, data in files]
            batch.required.check(self.encoder())
            return images
        except UnseenError as error:
            return error

    def _costs(self, files: Sequence[bytes]) -> list[int]:
        """How many images of usual size each counts as, by its header."""
        return [-(-self._numbered(claimed_pixels, number, data) // USUAL) for number, data in enumerate(files)]

    def _numbered(self, read: Callable[..., T], number: int, data: bytes) -> T:
        try:
            return read(data, most=self.limits.pixels, formats=BOUNDED_FORMATS)
        except ImageError as error:
            raise ImageError(f"expected images that can be read, got image {number}: {error}; leave it out") from error


def chunk_bounds(costs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of consecutive runs that cost CHUNK at most, or hold one image."""
    start = spent = 0
    for at, cost in enumerate(costs):
        if at > start and spent + cost > CHUNK:
            yield start, at
            start, spent = at, 0
        spent += cost
    yield start, len(costs)


def content_digest(files: Sequence[bytes]) -> bytes:
    """A hash of uploaded images: their vectors can differ in the last bit from one encoding to the next."""
    digest = hashlib.blake2b(digest_size=16)
    for data in files:
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
