"""Vectors of images, kept so that no image is encoded twice.

A shard is written whole under a name nobody else has, so no writer ever changes a file of another: two processes can
fill one folder, and a killed one leaves a folder that can be read.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders import Encoder
from unseen.encoders.base import SplitEncoder
from unseen.features.encoding import encode_ahead, make_reader, split_encoder
from unseen.features.shards import claim_folder, read_shards, write_shard
from unseen.images import Batch, Entry, Image, Skipped, read_entries
from unseen.storage.remote import Location, location


class FeatureCache:
    """A folder of features from one encoder."""

    def __init__(self, folder: str | Path, encoder: Encoder) -> None:
        self.folder = location(folder)
        claim_folder(self.folder, encoder.name, encoder.fingerprint)
        self.fingerprint = encoder.fingerprint
        self.done = {(row["key"], row["identity"]) for _, rows in read_shards(self.folder) for row in rows}

    def has(self, entry: Entry) -> bool:
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

    def vectors(self, images: Sequence[Image], encoder: Encoder) -> Float[Tensor, "n d"]:
        """One vector per image: read where it is here, else computed and kept."""
        missing = [image for image in images if not self.holds(image)]
        if missing:
            self.keep(missing, encoder.images(missing).cpu())
        return self.stored(images)

    def holds(self, image: Image) -> bool:
        """Whether the vector of an image is here."""
        return (image.path, image.identity) in self._stored

    def loaded(self) -> Self:
        """This cache with its vectors read, so that threads may ask what it holds."""
        _ = self._stored
        return self

    def keep(self, images: Sequence[Image | Entry], z: Float[Tensor, "n d"]) -> None:
        """Write vectors, and remember them."""
        self.add(images, z)
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


@dataclass(frozen=True)
class EncodedEntries:
    """What became of some entries, in order: those that have a vector now, and those that were skipped."""

    rows: tuple[Image | Entry | Skipped, ...]

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Those that could not be read."""
        return tuple(row for row in self.rows if isinstance(row, Skipped))

    @property
    def encoded(self) -> int:
        """How many have a vector now."""
        return len(self.rows) - len(self.skipped)


def stream_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache | None = None, *, size: int = 64
) -> Iterator[tuple[Batch, Float[Tensor, "n d"]]]:
    """Yield batches in order with one vector per readable image; what the cache holds is not encoded again.

    Pictures are small ones, as a report shows them, where the encoder lets pixels be made ahead of their vectors.
    """
    if (split := split_encoder(encoder)) is not None:
        yield from _stream_ahead(entries, split, cache, size)
        return
    for batch in read_entries(entries, size=size):
        if not batch:
            yield batch, torch.empty(0, encoder.dim)
        elif cache is None:
            yield batch, encoder.images(batch.images).cpu()
        else:
            yield batch, cache.vectors(batch.images, encoder)


def _stream_ahead(
    entries: Iterable[Entry], encoder: SplitEncoder, cache: FeatureCache | None, size: int
) -> Iterator[tuple[Batch, Float[Tensor, "n d"]]]:
    reader = make_reader(encoder, is_held=cache.loaded().holds if cache else None, keeps_pictures=True)
    for done in encode_ahead(entries, reader, size=size, chunk=1):
        batch = Batch(tuple(row for row in done.rows if not isinstance(row, Entry)))
        if not batch:
            yield batch, torch.empty(0, encoder.dim)
        elif cache is None:
            yield batch, done.z
        else:
            cache.keep(done.new, done.z)
            yield batch, cache.stored(batch.images)


def encode_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache, *, size: int = 64
) -> Iterator[EncodedEntries]:
    """Encode what is not in the cache yet, and yield each batch once it is on disk."""
    new = (entry for entry in entries if not cache.has(entry))
    if (split := split_encoder(encoder)) is not None:
        for done in encode_ahead(new, make_reader(split), size=size):
            cache.add(done.new, done.z)
            yield EncodedEntries(done.rows)
        return
    for batch in read_entries(new, size=size):
        cache.add(batch.images, encoder.images(batch.images))
        yield EncodedEntries(batch.rows)
