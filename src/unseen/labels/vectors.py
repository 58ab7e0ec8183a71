"""Text vectors of a corpus in blocks, each computed once per encoder and wording and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Float16
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import StateError
from unseen.labels.corpus import Corpus, distinct
from unseen.labels.prompts import TextEncoder, TextIdentity, Wording, text_identity
from unseen.storage.caches import cache_dir
from unseen.storage.files import load_tensors, save_tensors

BLOCK = 4096
Report = Callable[[int, int], None]  # words so far, words in all


@dataclass(frozen=True)
class Block:
    """Some words of one list with their vectors, which stay on disk until asked for."""

    words: tuple[str, ...]
    is_adjective: bool
    load: Callable[[], Float[Tensor, "n d"]]


@dataclass(frozen=True)
class Lot:
    """Words that are encoded together, and the file their vectors are kept in."""

    words: Sequence[str]
    is_adjective: bool
    wording: Wording
    path: Path
    header: str

    @property
    def is_kept(self) -> bool:
        """Say whether an earlier run has encoded these words."""
        try:
            self.read()
        except StateError:  # absent or torn: it is only a cache
            return False
        return True

    def encode(self, encoder: TextEncoder) -> Float16[Tensor, "n d"]:
        """Return one vector per word, in half precision: a fresh run and one from the cache see the same numbers."""
        return self.wording.encode(self.words, encoder).half().cpu().contiguous()

    def keep(self, vectors: Float16[Tensor, "n d"]) -> None:
        """Write the vectors of these words."""
        save_tensors(self.path, {"vectors": vectors}, kind="text-vectors", header=self.header)

    def read(self) -> Float16[Tensor, "n d"]:
        """Return the vectors that were kept."""
        return load_tensors(self.path, kind="text-vectors")[0]["vectors"]


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
    found = lots(corpus, encoder, wordings, cache=cache)
    total, done = sum(map(len, corpus.lists.values())), 0
    for lot in found:
        if not lot.is_kept:
            lot.keep(lot.encode(encoder))
        report(done := done + len(lot.words), total)
    return blocks(found, Lot.read, own)


def lots(
    corpus: Corpus, encoder: TextIdentity, wordings: dict[bool, Wording], *, cache: Path | None = None
) -> list[Lot]:
    """Return the corpus cut into what is encoded together, always alike."""
    folder = (cache or cache_dir()) / "texts" / text_identity(encoder)[:32]
    found = []
    for is_adjective, words in _chunks(corpus):
        wording = wordings[is_adjective]
        header = json.dumps([encoder.name, text_identity(encoder), wording.label, list(words)], ensure_ascii=False)
        path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.safetensors"
        found.append(Lot(words, is_adjective, wording, path, header))
    return found


def blocks(
    found: Iterable[Lot], read: Callable[[Lot], Float16[Tensor, "n d"]], own: Collection[str] = ()
) -> list[Block]:
    """Return each word once, less the user's own names, with vectors that `read` gets when they are asked for."""
    taken: set[str] = set()
    return [_block(lot, distinct(lot.words, taken, own), read) for lot in found]


def _chunks(corpus: Corpus) -> Iterator[tuple[bool, Sequence[str]]]:
    # chunks never span lists, so leaving out a list leaves the cached vectors of the others in use
    for name, words in corpus.lists.items():
        for start in range(0, len(words), BLOCK):
            yield name.startswith("adj."), words[start : start + BLOCK]


def _block(lot: Lot, kept: list[int], read: Callable[[Lot], Float16[Tensor, "n d"]]) -> Block:
    def load() -> Float[Tensor, "n d"]:
        return normalize(read(lot)[torch.tensor(kept, dtype=torch.long)].float(), dim=-1)

    return Block(tuple(lot.words[i] for i in kept), lot.is_adjective, load)
