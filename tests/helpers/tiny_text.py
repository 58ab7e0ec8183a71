"""A text encoder with no weights: a vector per text, drawn from a hash of it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize


class HashEncoder:
    name = "hash"

    def __init__(self, dim: int = 8, fingerprint: str = "hash-1") -> None:
        self.dim, self.fingerprint, self.encoded = dim, fingerprint, 0

    def texts(self, prompts: Sequence[str]) -> Tensor:
        self.encoded += len(prompts)
        return torch.stack([self._row(prompt) for prompt in prompts])

    def _row(self, prompt: str) -> Tensor:
        seed = int.from_bytes(hashlib.sha256(f"{self.fingerprint} {prompt}".encode()).digest()[:6], "big")
        return normalize(torch.randn(self.dim, generator=torch.Generator().manual_seed(seed)), dim=-1)


class TableEncoder:
    """Texts with vectors written by hand; the template is taken off."""

    name, dim, fingerprint = "table", 2, "table-1"

    def __init__(self, angles: dict[str, float]) -> None:
        self.angles = angles

    def texts(self, prompts: Sequence[str]) -> Tensor:
        found = [
            next(self.angles[word] for word in sorted(self.angles, key=len, reverse=True) if word in p) for p in prompts
        ]
        angle = torch.deg2rad(torch.tensor(found))
        return torch.stack([angle.cos(), angle.sin()], 1)


class GatedText:
    """A text encoder that encodes names at once and words only when a gate is open."""

    name, fingerprint, dim = "gated", "g" * 64, 8

    def __init__(self) -> None:
        self.gate, self.calls = threading.Event(), 0

    def texts(self, prompts: Sequence[str]) -> Tensor:
        self.calls += 1
        if self.calls > 2:  # the names, then a first part of the words
            self.gate.wait(20)
        return normalize(
            torch.randn(len(prompts), self.dim, generator=torch.Generator().manual_seed(self.calls)), dim=-1
        )
