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
from unseen.errors import check_choice
from unseen.features.shards import FORMATS, claim_folder, read_shards, write_shard
from unseen.images import Batch, Entry, Image, read_entries
from unseen.storage.remote import location


class FeatureCache:
    """A folder of features from one encoder."""

    def __init__(self, folder: str | Path, encoder: Encoder, *, form: str = FORMATS[0]) -> None:
        check_choice("a format", form, FORMATS)
        self.folder, self.form = location(folder), form
        claim_folder(self.folder, encoder.name, encoder.fingerprint)
        self.fingerprint = encoder.fingerprint
        self.done = {(row["key"], row["identity"]) for _, rows in read_shards(self.folder) for row in rows}

    def has(self, entry: Entry) -> bool:
        """Return whether this very file, unchanged, is in the cache."""
        return (entry.path, entry.identity) in self.done

    def add(self, images: Sequence[Image], z: Float[Tensor, "n d"]) -> None:
        """Write one shard, whole or not at all."""
        if not images:
            return
        rows = [{"key": image.path, "identity": image.identity, "label": image.label} for image in images]
        # the time keeps shards in the order of writing, the random part keeps two writers apart
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.{self.form}"
        write_shard(self.folder / name, z, rows, self.fingerprint)
        self.done |= {(row["key"], row["identity"]) for row in rows}

    def vectors(self, images: Sequence[Image], encoder: Encoder) -> Float[Tensor, "n d"]:
        """Return one vector per image: read where it is here, else computed and kept."""
        missing = [image for image in images if (image.path, image.identity) not in self._stored]
        if missing:
            z = encoder.images(missing).cpu()
            self.add(missing, z)
            self._stored.update(((image.path, image.identity), row) for image, row in zip(missing, z, strict=True))
        return torch.stack([self._stored[image.path, image.identity] for image in images])

    @cached_property
    def _stored(self) -> dict[tuple[str, str], Tensor]:
        shards = read_shards(self.folder)
        return {(row["key"], row["identity"]): z for part, rows in shards for row, z in zip(rows, part, strict=True)}


def stream_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache | None = None, *, size: int = 64
) -> Iterator[tuple[Batch, Float[Tensor, "n d"]]]:
    """Yield batches in order with one vector per readable image; what the cache holds is not encoded again."""
    for batch in read_entries(entries, size=size):
        if not batch:
            yield batch, torch.empty(0, encoder.dim)
        elif cache is None:
            yield batch, encoder.images(batch.images).cpu()
        else:
            yield batch, cache.vectors(batch.images, encoder)


def encode_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache, *, size: int = 64
) -> Iterator[Batch]:
    """Encode what is not in the cache yet, and yield each batch once it is on disk."""
    for batch in read_entries((entry for entry in entries if not cache.has(entry)), size=size):
        cache.add(batch.images, encoder.images(batch.images))
        yield batch
