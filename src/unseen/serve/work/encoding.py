"""Encode uploaded images and names, with an encoder that is loaded when it is first needed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, demo, load_encoder
from unseen.discover import Vocabulary
from unseen.encoders import Encoder
from unseen.errors import EncoderError, ImageError, LabelError, ServiceError, UnseenError
from unseen.labels.prompts import described_templates
from unseen.progress import Progress, no_progress
from unseen.serve.settings import INSIDE, Limits
from unseen.serve.work.decoding import DecodedImage, DecoderProcesses
from unseen.serve.work.threads import MicroBatcher, thread_pool

log = logging.getLogger("unseen.serve")
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


class EncodedImages(NamedTuple):
    """A vector and a small JPEG of each image that could be read, their places in the request, and what could not."""

    z: Float[Tensor, "n d"]
    thumbnails: tuple[bytes, ...]
    places: Sequence[int]
    skipped: Sequence[dict[str, object]]


class ImageEncoder:
    """One encoder for all streams of a service, or none.

    Images are decoded by processes and encoded by a thread of low priority, so streams that are sent vectors, and
    requests that only read, go on meanwhile. Owners take turns: of each a few images are decoded at a time.
    """

    def __init__(self, name: str | None, limits: Limits) -> None:
        self.name, self.limits = name, limits
        spare = max(1, len(os.sched_getaffinity(0)) - 1)  # cores left beside the one that serves
        self._encoding = thread_pool(1, "encode", compute=spare, nice=2)
        self._mining = thread_pool(1, "mine", compute=spare, nice=5)
        self._waiting = thread_pool(spare, "decode")  # threads that wait for the processes
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._batcher = MicroBatcher(self._vectors, self._encoding, block=32, queue=limits.queue)
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None
        self._decoders: DecoderProcesses | None = None
        self._spare, self._at_once = spare, max(INSIDE.images, 2 * spare)

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
        self, names: Sequence[str], negatives: Mapping[str, Any], *, progress: Progress = no_progress
    ) -> LabelSpace:
        """A label space of `names` with negatives."""
        if not 0 < len(names) <= self.limits.names:
            raise LabelError(f"expected 1 to {self.limits.names} names, got {len(names)}; pass the classes you know")
        return await self._mined(lambda: LabelSpace.build(names, self.encoder(), progress=progress, **negatives))

    async def name_vector(self, labels: LabelSpace, name: str) -> Float[Tensor, " d"]:
        """The text vector of one more name for a label space, by its own prompt."""
        return await self._mined(partial(self._encode_name, labels, name))

    def run_later(self, work: Callable[[], object]) -> None:
        """Do what nobody waits for in the thread that mines."""
        self._mining.submit(work)

    async def encode(
        self, owner: str, files: Sequence[bytes], names: Sequence[str | None], required: RequiredEncoder
    ) -> EncodedImages:
        """A vector and a thumbnail of each image that can be read; refuse a request of which none can."""
        loop = asyncio.get_running_loop()
        encoder = await loop.run_in_executor(self._encoding, self.encoder)
        required.check(encoder)
        turn = self._turns.setdefault(owner, asyncio.Semaphore(self._at_once))

        async def decoded(file: bytes) -> DecodedImage | ImageError:
            async with turn:
                return await loop.run_in_executor(self._waiting, self._decoded, encoder, file)

        skipped, places, thumbnails, vectors = [], [], [], []
        for start in range(0, len(files), INSIDE.images):
            good = []
            for place, found in enumerate(
                await asyncio.gather(*map(decoded, files[start : start + INSIDE.images])), start
            ):
                if isinstance(found, ImageError):
                    skipped.append({"index": place, "key": names[place] or f"image {place}", "reason": str(found)})
                else:
                    good.append(found)
                    places.append(place)
            if good:
                vectors.append(await self._batcher(good))
            thumbnails += [image.thumbnail for image in good]
        if not vectors:
            first = skipped[0]
            raise ImageError(f"expected images that can be read, got {first['key']}: {first['reason']}; leave it out")
        return EncodedImages(torch.cat(vectors), tuple(thumbnails), places, skipped)

    def close(self) -> None:
        """Leave what is at work: whoever asked has been answered or told to ask again, and mining takes minutes."""
        for pool in (self._encoding, self._mining, self._waiting):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._decoders:
            self._decoders.close()

    def _decoded(self, encoder: Encoder, file: bytes) -> DecodedImage | ImageError:
        with self._lock:
            self._decoders = self._decoders or DecoderProcesses(self._spare, self.limits)
        return self._decoders.decode(encoder.prepare, file)  # type: ignore[attr-defined]

    def _vectors(self, parts: Sequence[Sequence[DecodedImage]]) -> list[Tensor]:
        pixels = np.stack([image.pixels for part in parts for image in part])
        vectors = self.encoder().vectors(torch.from_numpy(pixels)).cpu()  # type: ignore[attr-defined]
        return list(vectors.split([len(part) for part in parts]))

    async def _mined(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._mining, work)

    def _encode_name(self, labels: LabelSpace, name: str) -> Float[Tensor, " d"]:
        RequiredEncoder.of(labels).check(self.encoder())
        return described_templates(labels.prompt).encode([name], self.encoder())[0].cpu()


class GroupWords:
    """Vocabularies by encoder and prompt; one that is not there yet is made in the background."""

    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder
        self._made: dict[tuple[str, str], Vocabulary | None] = {}
        self._lock = threading.Lock()

    def of(self, labels: LabelSpace) -> Vocabulary | None:
        """Words for the groups of a label space; None, for its negatives, until there are better ones."""
        if labels.encoder == demo.load().space.encoder:
            return demo.vocabulary()
        key = labels.encoder, labels.prompt
        with self._lock:
            if key not in self._made:
                self._made[key] = None
                self._encoder.run_later(lambda: self._make(labels))
            return self._made[key]

    def _make(self, labels: LabelSpace) -> None:
        try:
            RequiredEncoder.of(labels).check(encoder := self._encoder.encoder())
            words = demo.vocabulary().words
            vectors = described_templates(labels.prompt).encode(words, encoder).float().cpu()
            self._made[labels.encoder, labels.prompt] = Vocabulary(words, vectors)
        except UnseenError as error:
            log.info("groups of %s are named by negatives: %s", labels.encoder or "a label space", error)


def content_digest(files: Sequence[bytes]) -> bytes:
    """A hash of uploaded images: their vectors can differ in the last bit from one encoding to the next."""
    digest = hashlib.blake2b(digest_size=16)
    for data in files:
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
