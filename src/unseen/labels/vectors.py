"""Text vectors of a corpus in blocks, each computed once per encoder and wording and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encode.fetch import cache_dir
from unseen.errors import StateError
from unseen.files import load_tensors, save_tensors
from unseen.labels.corpus import Corpus, distinct
from unseen.labels.prompts import TextEncoder, Wording, text_identity

BLOCK = 4096
Report = Callable[[int, int], None]  # words so far, words in all


@dataclass(frozen=True)
class Block:
    """Some words of one list with their vectors, which stay on disk until asked for."""

    words: tuple[str, ...]
    is_adjective: bool
    load: Callable[[], Float[Tensor, "n d"]]


def encode_corpus(
    corpus: Corpus,
    encoder: TextEncoder,
    wordings: dict[bool, Wording],
    *,
    own: Collection[str] = (),
    cache: Path | None = None,
    report: Report = lambda done, total: None,
) -> list[Block]:
    """Return the corpus in blocks, each word once; what an earlier run encoded is read, not encoded again."""
    folder = (cache or cache_dir()) / "texts" / text_identity(encoder)[:32]
    total, done = sum(map(len, corpus.lists.values())), 0
    taken: set[str] = set()
    blocks = []
    for is_adjective, words in _chunks(corpus):
        path = _ensure(folder, words, encoder, wordings[is_adjective])
        kept = distinct(words, taken, own)
        blocks.append(Block(tuple(words[i] for i in kept), is_adjective, _loader(path, kept)))
        report(done := done + len(words), total)
    return blocks


def _chunks(corpus: Corpus) -> Iterator[tuple[bool, Sequence[str]]]:
    # chunks never span lists, so leaving out a list leaves the cached vectors of the others in use
    for name, words in corpus.lists.items():
        for start in range(0, len(words), BLOCK):
            yield name.startswith("adj."), words[start : start + BLOCK]


def _ensure(folder: Path, words: Sequence[str], encoder: TextEncoder, wording: Wording) -> Path:
    header = json.dumps([encoder.name, text_identity(encoder), wording.label, list(words)], ensure_ascii=False)
    path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.safetensors"
    if not _is_whole(path):
        vectors = wording.encode(words, encoder)
        # half precision always, so that a fresh run and one from the cache see the same numbers
        save_tensors(path, {"vectors": vectors.half().cpu().contiguous()}, kind="text-vectors", header=header)
    return path


def _is_whole(path: Path) -> bool:
    try:
        load_tensors(path, kind="text-vectors")
    except StateError:  # absent or torn: it is only a cache
        return False
    return True


def _loader(path: Path, kept: list[int]) -> Callable[[], Float[Tensor, "n d"]]:
    def load() -> Float[Tensor, "n d"]:
        vectors, _ = load_tensors(path, kind="text-vectors")
        return normalize(vectors["vectors"][torch.tensor(kept, dtype=torch.long)].float(), dim=-1)

    return load
