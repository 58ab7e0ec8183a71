"""Vectors of images, kept so that no image is encoded twice.

A shard is written whole under a name nobody else has, so no writer ever changes a file of another: two processes can
fill one folder, and a killed one leaves a folder that can be read.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders import Encoder
from unseen.features.encoding import Encoded, encode_ahead, make_reader
from unseen.features.shards import claim_folder, read_shards, write_shard
from unseen.images import Batch, Entry, Image
from unseen.storage.remote import Location, location


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
