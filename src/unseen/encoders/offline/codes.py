"""Approximate vectors of WordNet's words in the offline text space, from codes in the package instead of the tower.

Product quantisation: a vector, centred and rotated, is divided into parts of four numbers, and each part is stored as
the number of the nearest of 256 centroids. Axes are weighted so that cosines to texts are near, not the vectors
themselves: those are not unit. `tools/build_text_codes.py` writes the file and prints how near.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int32, UInt8
from torch import Tensor

from unseen.storage.files import read_safetensors

CODES = Path(__file__).with_name("codes.safetensors")


@dataclass(frozen=True, eq=False)
class TextCodes:
    """One code per name, found by a hash of the name."""

    hashes: Int32[Tensor, " n"]  # ascending
    codes: UInt8[Tensor, "n parts"]
    centroids: Float[Tensor, "parts 256 width"]
    basis: Float[Tensor, "parts*width d"]
    mean: Float[Tensor, " d"]
    manifest: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path = CODES) -> TextCodes:
        """Read the codes that `tools/build_text_codes.py` wrote."""
        tensors, metadata = read_safetensors(path)
        for name in ("centroids", "basis", "mean"):
            tensors[name] = tensors[name].float()
        return cls(**tensors, manifest=json.loads(metadata["manifest"]))

    @property
    def text_fingerprint(self) -> str:
        """The identity of the text tower whose vectors these are."""
        return str(self.manifest["text_fingerprint"])

    @property
    def cosine_error(self) -> float:
        """The root mean square error of a cosine to a text vector."""
        return float(self.manifest["cosine_error"])

    def __call__(self, names: Sequence[str]) -> Float[Tensor, "n d"]:
        """One approximate vector per name, NaN where a name has no code."""
        places = self.find(names)
        vectors = self.decode(self.codes[places.clamp(min=0)])
        vectors[places < 0] = torch.nan
        return vectors

    def find(self, names: Sequence[str]) -> Int[Tensor, " n"]:
        """The place of each name's code, -1 where it has none."""
        wanted = hash_names(names, salt=self.manifest["salt"])
        stored = self.hashes.numpy()
        places = np.searchsorted(stored, wanted).clip(max=len(stored) - 1)
        return torch.from_numpy(np.where(stored[places] == wanted, places, -1))

    def decode(self, codes: UInt8[Tensor, "n parts"]) -> Float[Tensor, "n d"]:
        """The vectors that codes stand for."""
        parts = torch.arange(codes.shape[1])
        return self.mean + self.centroids[parts, codes.long()].flatten(1) @ self.basis


def hash_names(names: Sequence[str], *, salt: int) -> Int32[np.ndarray, " n"]:
    """32 bits per name, whatever its case: the tower reads lower case."""
    key = salt.to_bytes(8, "big")
    digests = (hashlib.blake2b(name.lower().encode(), digest_size=4, key=key).digest() for name in names)
    return np.frombuffer(b"".join(digests), dtype=">i4").astype(np.int32)
