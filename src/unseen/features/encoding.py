"""Images to vectors, kept so that no image is encoded twice.

While the encoder works on one batch, threads, one for each core, read images and make pixels of the next; one more runs
the encoder. Order is kept, and what is held at a time is bounded: a few images for each core, and two batches.

A shard is written whole under a name nobody else has, so no writer ever changes a file of another: two processes can
fill one folder, and a killed one leaves a folder that can be read.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders import Encoder
from unseen.features.shards import claim_folder, read_shards, write_shard
from unseen.images import Batch, Entry, Image, Skipped
from unseen.images.decode import reduced
from unseen.images.sources import in_lists, prefetch, usable_cores
from unseen.storage.remote import Location, location


@dataclass(frozen=True)
class AheadNumbers:
    """How far ahead of the encoder images are read, and what is kept of them."""

    chunk: int = 4  # images that a thread decodes at a time: handing over each would take as long as reading it
    batches: int = 1  # that the encoder has had or has, beside the one that is waited for
    kept: int = 256  # pixels of the longer side of a picture that is kept: what a report shows
    spare: int = 2  # a JPEG is read at a scale that leaves so many times the pixels of the tower, on each side


NUMBERS = AheadNumbers()


class Prepared(NamedTuple):
    """An image and what the encoder takes of it, None where its vector is known; its picture may be gone."""

    image: Image | Entry
    pixels: Any


class Encoded(NamedTuple):
    """A batch in order, those of its images that were encoded, and one vector for each of these."""

    rows: tuple[Image | Entry | Skipped, ...]
    new: tuple[Image | Entry, ...]
    z: Float[Tensor, "n d"]

    @property
    def encoded(self) -> int:
        """How many were encoded."""
        return len(self.new)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Those that could not be read."""
        return tuple(row for row in self.rows if isinstance(row, Skipped))


@dataclass(frozen=True)
class ImageReader:
    """What threads do with images: read, decode, resize; of one whose vector `is_held` no pixels are made."""

    prepare: Callable[[Image], Any]
    vectors: Callable[[list[Any]], Tensor]  # of what `prepare` made
    least: int = 0  # pixels of the shorter side that a reduced picture must have, 0 for whole pictures
    is_held: Callable[[Image], bool] | None = None
    keeps_pictures: bool = False  # small ones
    runs_ahead: bool = True  # in a thread; an encoder of the user's own may not bear that

    def read_all(self, entries: Sequence[Entry]) -> list[Prepared | Skipped]:
        """Some images in order, or the reasons why there are none."""
        return [self.read(entry) for entry in entries]

    def read(self, entry: Entry) -> Prepared | Skipped:
        """One image, or the reason why there is none."""
        image = entry.read(self.least)
        if isinstance(image, Skipped):
            return image
        pixels = None if self.is_held and self.is_held(image) else self.prepare(image)
        if not self.keeps_pictures:
            return Prepared(entry, pixels)
        return Prepared(replace(image, pixels=reduced(image.pixels, NUMBERS.kept)), pixels)

    def encode(self, rows: Sequence[Prepared | Skipped]) -> Encoded:
        """A batch with the vectors of its pixels."""
        images = tuple(row if isinstance(row, Skipped) else row.image for row in rows)
        new = [row for row in rows if isinstance(row, Prepared) and row.pixels is not None]
        if not new:
            return Encoded(images, (), torch.empty(0))
        with torch.inference_mode():
            z = self.vectors([row.pixels for row in new]).cpu()
        return Encoded(images, tuple(row.image for row in new), z.clone())  # out of inference mode


def make_reader(
    encoder: Encoder, *, is_held: Callable[[Image], bool] | None = None, keeps_pictures: bool = False
) -> ImageReader:
    """What reads images for an encoder and runs it; one that only takes images gets them whole."""
    if not (hasattr(encoder, "prepare") and hasattr(encoder, "vectors")):
        return ImageReader(lambda image: image, encoder.images, 0, is_held, keeps_pictures, runs_ahead=False)
    prepare, device = encoder.prepare, getattr(encoder, "device", None)
    return ImageReader(
        lambda image: prepare([image])[0],
        lambda pixels: encoder.vectors(torch.stack(pixels).to(device)),
        NUMBERS.spare * getattr(encoder, "side", 0),
        is_held,
        keeps_pictures,
    )


def encode_ahead(
    entries: Iterable[Entry],
    reader: ImageReader,
    *,
    size: int,
    chunk: int = NUMBERS.chunk,
    workers: int | None = None,
) -> Iterator[Encoded]:
    """Yield batches of `size` entries in order, with the vectors of their images; a thread for each core reads."""
    workers, chunks = workers or usable_cores(), in_lists(entries, chunk)
    with closing(prefetch(reader.read_all, chunks, workers=workers, most=2 * workers, name="read")) as read:
        batches = in_lists((row for rows in read for row in rows), size)
        if reader.runs_ahead:
            yield from prefetch(reader.encode, batches, workers=1, most=NUMBERS.batches, name="encode")
        else:
            yield from map(reader.encode, batches)


class FeatureCache:
    """A folder of features from one encoder."""

    def __init__(self, folder: str | Path, encoder: Encoder) -> None:
        self.folder = location(folder)
        claim_folder(self.folder, encoder.name, encoder.fingerprint)
        self.fingerprint = encoder.fingerprint
        self.done = {(row["key"], row["identity"]) for _, rows in read_shards(self.folder) for row in rows}

    def has(self, entry: Image | Entry) -> bool:
        """Whether this very file, unchanged, is in the cache."""
        return (entry.path, entry.identity) in self.done

    def add(self, images: Sequence[Image | Entry], z: Float[Tensor, "n d"]) -> None:
        """Write one shard, whole or not at all."""
        if not images:
            return
        rows = [{"key": image.path, "identity": image.identity, "label": image.label} for image in images]
        # the time keeps shards in the order of writing, the random part keeps two writers apart
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.safetensors"
        write_shard(self.folder / name, z, rows, self.fingerprint)
        self.done |= {(row["key"], row["identity"]) for row in rows}
        if "_stored" in vars(self):
            self._stored.update(((image.path, image.identity), row) for image, row in zip(images, z, strict=True))

    def stored(self, images: Sequence[Image]) -> Float[Tensor, "n d"]:
        """The vectors of images that are here."""
        return torch.stack([self._stored[image.path, image.identity] for image in images])

    @cached_property
    def _stored(self) -> dict[tuple[str, str], Tensor]:
        return stored_vectors(self.folder)


def stored_vectors(folder: Location) -> dict[tuple[str, str], Tensor]:
    """The vectors in a folder by the key and the identity of the image."""
    shards = read_shards(folder)
    return {(row["key"], row["identity"]): z for part, rows in shards for row, z in zip(rows, part, strict=True)}


def stream_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache | None = None, *, size: int = 64
) -> Iterator[tuple[Batch, Float[Tensor, "n d"]]]:
    """Yield batches in order with one vector per readable image; what the cache holds is not encoded again.

    Pictures are small ones, as a report shows them.
    """
    reader = make_reader(encoder, is_held=cache.has if cache else None, keeps_pictures=True)
    for done in encode_ahead(entries, reader, size=size, chunk=1):
        batch = Batch(tuple(row for row in done.rows if not isinstance(row, Entry)))
        if not batch:
            yield batch, torch.empty(0, encoder.dim)
        elif cache is None:
            yield batch, done.z
        else:
            cache.add(done.new, done.z)
            yield batch, cache.stored(batch.images)


def encode_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache, *, size: int = 64
) -> Iterator[Encoded]:
    """Encode what is not in the cache yet, and yield each batch once it is on disk."""
    new = (entry for entry in entries if not cache.has(entry))
    for done in encode_ahead(new, make_reader(encoder), size=size):
        cache.add(done.new, done.z)
        yield done
