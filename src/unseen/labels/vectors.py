"""Text vectors of a corpus, each computed once per encoder and prompt and kept on disk."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Float16
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import StateError
from unseen.labels.corpus import Corpus, canonical_spelling, distinct_words
from unseen.labels.prompts import Prompt, TextEncoder, TextIdentity, text_fingerprint
from unseen.progress import Progress, no_progress
from unseen.storage.files import cache_dir, load_tensors, save_tensors

CHUNK = 4096  # words per file


class CorpusPrompts(NamedTuple):
    """How the words of a corpus are worded."""

    nouns: Prompt
    adjectives: Prompt


@dataclass(frozen=True)
class Candidates:
    """Words that may become negatives, with vectors that stay on disk until asked for."""

    words: tuple[str, ...]
    is_adjective: bool
    load: Callable[[], Float[Tensor, "n d"]]


@dataclass(frozen=True)
class WordChunk:
    """Words that are encoded together, and the file their vectors are kept in."""

    words: Sequence[str]
    is_adjective: bool
    prompt: Prompt
    path: Path
    header: str

    @property
    def is_cached(self) -> bool:
        """Return whether an earlier run has encoded these words."""
        try:
            self.read()
        except StateError:  # absent or torn: it is only a cache
            return False
        return True

    def encode(self, encoder: TextEncoder) -> Float16[Tensor, "n d"]:
        """Return one vector per word, in half precision: a fresh run and one from the cache see the same numbers."""
        return self.prompt.encode(self.words, encoder).half().cpu().contiguous()

    def write(self, vectors: Float16[Tensor, "n d"]) -> None:
        """Keep the vectors of these words."""
        save_tensors(self.path, {"vectors": vectors}, kind="text-vectors", header=self.header)

    def read(self) -> Float16[Tensor, "n d"]:
        """Return the vectors that were kept."""
        return load_tensors(self.path, kind="text-vectors")[0]["vectors"]


def encode_corpus(
    corpus: Corpus,
    encoder: TextEncoder,
    prompts: CorpusPrompts,
    *,
    names: Iterable[str] = (),
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> list[Candidates]:
    """Return the words of a corpus less the known names; what an earlier run encoded is read, not encoded again."""
    chunks = chunk_corpus(corpus, encoder, prompts, cache=cache)
    total, done = sum(map(len, corpus.lists.values())), 0
    for chunk in chunks:
        if not chunk.is_cached:
            chunk.write(chunk.encode(encoder))
        progress(done := done + len(chunk.words), total)
    return candidates(chunks, WordChunk.read, names)


def chunk_corpus(
    corpus: Corpus, encoder: TextIdentity, prompts: CorpusPrompts, *, cache: Path | None = None
) -> list[WordChunk]:
    """Return the corpus in the parts that are encoded together, always the same."""
    identity = text_fingerprint(encoder)
    folder = (cache or cache_dir()) / "texts" / identity[:32]
    chunks = []
    for is_adjective, words in _cut(corpus):
        prompt = prompts.adjectives if is_adjective else prompts.nouns
        header = json.dumps([encoder.name, identity, prompt.description, list(words)], ensure_ascii=False)
        path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.safetensors"
        chunks.append(WordChunk(words, is_adjective, prompt, path, header))
    return chunks


def candidates(
    chunks: Iterable[WordChunk], read: Callable[[WordChunk], Float16[Tensor, "n d"]], names: Iterable[str] = ()
) -> list[Candidates]:
    """Return each word once, less the known names, with vectors that `read` gets when they are asked for."""
    taken = set(map(canonical_spelling, names))
    return [_candidates(chunk, distinct_words(chunk.words, taken), read) for chunk in chunks]


def _cut(corpus: Corpus) -> Iterator[tuple[bool, Sequence[str]]]:
    # chunks never span lists, so leaving out a list leaves the cached vectors of the others in use
    for name, words in corpus.lists.items():
        for start in range(0, len(words), CHUNK):
            yield name.startswith("adj."), words[start : start + CHUNK]


def _candidates(chunk: WordChunk, kept: list[int], read: Callable[[WordChunk], Float16[Tensor, "n d"]]) -> Candidates:
    def load() -> Float[Tensor, "n d"]:
        return normalize(read(chunk)[torch.tensor(kept, dtype=torch.long)].float(), dim=-1)

    return Candidates(tuple(chunk.words[i] for i in kept), chunk.is_adjective, load)
