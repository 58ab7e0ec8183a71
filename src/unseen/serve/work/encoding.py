"""Encode uploaded images and names, with an encoder that is loaded when it is first needed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, load_encoder
from unseen.encoders import Encoder
from unseen.errors import EncoderError, ImageError, LabelError, ServiceError
from unseen.labels.prompts import described_templates
from unseen.progress import Progress, no_progress
from unseen.serve.settings import INSIDE, Limits
from unseen.serve.work.decoding import DecodedImage, Decoders
from unseen.serve.work.threads import MicroBatcher, thread_pool

T = TypeVar("T")


def check_encoder(labels: LabelSpace, encoder: Encoder) -> None:
    """Refuse an encoder that does not give the vectors of a label space; one that names none takes any of its width."""
    if encoder.dim != labels.dim or labels.encoder not in ("", encoder.name):
        wanted = f"the encoder {labels.encoder or 'of this label space'} of width {labels.dim}"
        what = f"expected images for {wanted}, got {encoder.name} of width {encoder.dim}"
        raise ServiceError(422, f"{what}; start the service with that --encoder or send features")


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
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._batcher = MicroBatcher(self._vectors, self._encoding, block=32, queue=limits.queue)
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None
        self._decoders: Decoders | None = None
        self._spare = spare

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

    async def encode(
        self, owner: str, files: Sequence[bytes], keys: Sequence[str | None], labels: LabelSpace
    ) -> tuple[Float[Tensor, "n d"], dict[str, Any]]:
        """A vector of each image that can be read, and what else `sample_batch` takes; refuse where none can."""
        loop = asyncio.get_running_loop()
        encoder, decoders = await loop.run_in_executor(self._encoding, self._loaded)
        check_encoder(labels, encoder)
        turn = self._turns.setdefault(owner, asyncio.Semaphore(max(INSIDE.images, 2 * self._spare)))

        async def decoded(file: bytes) -> DecodedImage | ImageError:
            async with turn:
                return await decoders.decode(encoder.prepare, file)  # type: ignore[attr-defined]

        skipped, places, thumbnails, vectors = [], [], [], []
        for start in range(0, len(files), INSIDE.images):
            good, chunk = [], files[start : start + INSIDE.images]
            for place, found in enumerate(await asyncio.gather(*map(decoded, chunk)), start):
                if isinstance(found, ImageError):
                    key = keys[place] if keys else None
                    skipped.append({"index": place, "key": key or f"image {place}", "reason": str(found)})
                else:
                    good.append(found)
                    places.append(place)
            if good:
                vectors.append(await self._batcher(good))
            thumbnails += [image.thumbnail for image in good]
        if not vectors:
            why = f"{skipped[0]['key']}: {skipped[0]['reason']}"
            raise ImageError(f"expected images that can be read, got {why}; leave it out")
        more: dict[str, Any] = {"thumbnails": thumbnails, "skipped": skipped}
        more |= {"keys": [keys[place] for place in places] if keys else ()}
        return torch.cat(vectors), more | {"digest": await loop.run_in_executor(self._encoding, content_digest, files)}

    def close(self) -> None:
        """Leave what is at work: whoever asked has been answered or told to ask again, and mining takes minutes."""
        for pool in (self._encoding, self._mining):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._decoders:
            self._decoders.close()

    def _loaded(self) -> tuple[Encoder, Decoders]:
        encoder = self.encoder()
        self._decoders = self._decoders or Decoders(self._spare, self.limits)  # one thread encodes
        return encoder, self._decoders

    def _vectors(self, parts: Sequence[Sequence[DecodedImage]]) -> list[Tensor]:
        pixels = np.stack([image.pixels for part in parts for image in part])
        vectors = self.encoder().vectors(torch.from_numpy(pixels)).cpu()  # type: ignore[attr-defined]
        return list(vectors.split([len(part) for part in parts]))

    async def _mined(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._mining, work)

    def _encode_name(self, labels: LabelSpace, name: str) -> Float[Tensor, " d"]:
        check_encoder(labels, self.encoder())
        return described_templates(labels.prompt).encode([name], self.encoder())[0].cpu()


def content_digest(files: Sequence[bytes]) -> bytes:
    """A hash of uploaded images: their vectors can differ in the last bit from one encoding to the next."""
    digest = hashlib.blake2b(digest_size=16)
    for data in files:
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
