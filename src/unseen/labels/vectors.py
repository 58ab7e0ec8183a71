"""Text vectors of words, each computed once per encoder and prompt and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import StateError
from unseen.labels.prompts import TextEncoder, WordedPrompt, text_fingerprint
from unseen.progress import Progress, no_progress
from unseen.storage.files import cache_dir, load_tensors, save_tensors

STEP = 1024  # words between two reports of progress; after eight times as many, what is done is kept


def word_vectors(
    words: Sequence[str],
    prompt: WordedPrompt,
    encoder: TextEncoder,
    *,
    cache: Path | None = None,
    name: str = "words",
    progress: Progress = no_progress,
) -> Float[Tensor, "n d"]:
    """A unit vector per word; what an earlier run has encoded is read, not encoded again.

    All go through half precision, so that a fresh run and one from the cache see the same numbers. Lists called by
    other names are kept in other files.
    """
    kept = KeptVectors(cache or cache_dir(), encoder, prompt, name)
    known = kept.read()
    missing = [word for word in dict.fromkeys(words) if word not in known]
    for start in range(0, len(missing), STEP):
        part = missing[start : start + STEP]
        known |= zip(part, prompt.encode(part, encoder).half().cpu(), strict=True)
        is_last = start + STEP >= len(missing)
        if is_last or not (start // STEP + 1) % 8:
            kept.write(known)
        progress(start + len(part), len(missing))
    vectors = torch.stack([known[word] for word in words]) if words else torch.empty(0, encoder.dim)
    return normalize(vectors.float(), dim=-1)


class KeptVectors:
    """The file of one encoder, prompt and list of words."""

    def __init__(self, folder: Path, encoder: TextEncoder, prompt: WordedPrompt, name: str) -> None:
        identity = text_fingerprint(encoder)
        self.key = json.dumps([encoder.name, identity, prompt.description, name], ensure_ascii=False)
        file = hashlib.sha256(self.key.encode()).hexdigest()[:32]
        self.path = folder / "texts" / identity[:32] / f"{file}.safetensors"

    def read(self) -> dict[str, Tensor]:
        """The vector of each word that was kept."""
        try:
            tensors, header = load_tensors(self.path, kind="word-vectors")
            return dict(zip(json.loads(header)["words"], tensors["vectors"], strict=True))
        except StateError:  # absent or torn: it is only a cache
            return {}

    def write(self, vectors: dict[str, Tensor]) -> None:
        """Keep the vectors of all these words."""
        header = json.dumps({"key": self.key, "words": list(vectors)}, ensure_ascii=False)
        save_tensors(self.path, {"vectors": torch.stack([*vectors.values()])}, kind="word-vectors", header=header)
