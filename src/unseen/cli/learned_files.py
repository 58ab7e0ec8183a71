"""Which images a state has learned: a bounded record beside it, so that a repeated command learns nothing twice.

An image is recognised by its path and its pixels together. Each is recorded with its place in the stream. The record is
written before the state: places beyond what a state has seen, after a crash or an undone edit, are dropped.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from unseen.images import Image
from unseen.storage.files import load_tensors, save_tensors

KIND = "learned-files"
MOST = 1 << 17  # images that are remembered, the latest; 16 bytes each


def record_path(state: Path) -> Path:
    """Where the record of a state lies."""
    return state.with_suffix(".learned.safetensors")


def digest(image: Image) -> int:
    """64 bits that change with the path of an image, its size or any of its pixels."""
    path = image.path if "://" in image.path else os.path.abspath(image.path)
    made = hashlib.sha256(f"{path}\0{image.pixels.size}\0".encode(errors="surrogateescape"))
    made.update(image.pixels.tobytes())
    return int.from_bytes(made.digest()[:8], "little", signed=True)


@dataclass
class LearnedFiles:
    """The images that a state has learned, oldest first: digest -> place in the stream."""

    path: Path
    places: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of_state(cls, state: Path, seen: int) -> "LearnedFiles":
        """The record of a state that has seen so many images; an empty one where there is none."""
        path = record_path(state)
        if not path.exists():
            return cls(path)
        tensors, _ = load_tensors(path, kind=KIND)
        pairs = zip(tensors["digest"].tolist(), tensors["place"].tolist(), strict=True)
        return cls(path, {one: place for one, place in pairs if place < seen})

    def claim(self, images: Sequence[Image], seen: int, *, again: bool = False) -> Bool[Tensor, " n"]:
        """Which images are new, and record these as the next that are learned; `again`: all are new."""
        is_new = []
        for one in map(digest, images):
            is_new.append(again or one not in self.places)
            if is_new[-1]:
                self.places.pop(one, None)  # to the end
                self.places[one] = seen + sum(is_new) - 1
        return torch.tensor(is_new, dtype=torch.bool)

    def save(self) -> None:
        """Write the latest MOST, whole or not at all."""
        latest = list(self.places.items())[-MOST:]
        self.places = dict(latest)
        one, place = torch.tensor(latest, dtype=torch.int64).reshape(-1, 2).T
        save_tensors(self.path, {"digest": one.contiguous(), "place": place.contiguous()}, kind=KIND, header="{}")
