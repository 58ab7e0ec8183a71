"""Text vectors of a corpus, each computed once per encoder and prompt and kept on disk."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Float16, Int
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import StateError
from unseen.labels.corpus import Corpus, distinct_words
from unseen.labels.names import canonical_spelling
from unseen.labels.prompts import TextEncoder, TextIdentity, WordedPrompt, text_fingerprint
from unseen.progress import Progress, no_progress
from unseen.storage.files import cache_dir, load_tensors, save_tensors

CHUNK = 4096  # words per file
STEP = 1024  # words between two reports of progress


class CorpusPrompts(NamedTuple):
    """How the words of a corpus are worded."""

    nouns: WordedPrompt
    adjectives: WordedPrompt


@dataclass(frozen=True)
class Candidates:
    """Words that may become negatives, with vectors that stay on disk until asked for."""

    words: tuple[str, ...]
    is_adjective: bool
    load: Callable[[], Float[Tensor, "n d"]]


@dataclass(frozen=True)
class WordChunk:
    """Words whose vectors are kept in one file: those that were needed so far."""

    words: Sequence[str]
    is_adjective: bool
    prompt: WordedPrompt
    path: Path
    header: str

    @property
    def is_cached(self) -> bool:
        """Whether earlier runs have encoded all of these words."""
        return not self.missing(range(len(self.words)))

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Those of the rows that no earlier run has encoded."""
        known = set(self._stored_vectors()[0].tolist())
        return [row for row in rows if row not in known]

    def encode(self, encoder: TextEncoder, rows: Sequence[int] | None = None) -> Float16[Tensor, "n d"]:
        """One vector per word, in half precision: a fresh run and one from the cache see the same numbers."""
        words = self.words if rows is None else [self.words[row] for row in rows]
        return self.prompt.encode(words, encoder).half().cpu().contiguous()

    def write(self, vectors: Float16[Tensor, "n d"], rows: Sequence[int] | None = None) -> None:
        """Keep the vectors of these words, or of some rows of them."""
        numbers = torch.arange(len(self.words)) if rows is None else torch.tensor(rows)
        tensors = {"vectors": vectors, "rows": numbers}
        save_tensors(self.path, tensors, kind="text-vectors", header=self.header)

    def add(self, rows: Sequence[int], encoder: TextEncoder) -> None:
        """Encode those of the rows that are missing, and keep them beside the others."""
        if missing := self.missing(rows):
            known, vectors = self._stored_vectors()
            fresh = self.encode(encoder, missing)
            self.write(torch.cat([vectors, fresh]) if len(known) else fresh, [*known.tolist(), *missing])

    def read(self, rows: Sequence[int] | None = None) -> Float16[Tensor, "n d"]:
        """The vectors that were kept, of all words or of some rows."""
        known, vectors = self._stored_vectors()
        places = torch.full((len(self.words),), -1).index_copy_(0, known, torch.arange(len(known)))
        return vectors[places if rows is None else places[torch.tensor(rows, dtype=torch.long)]]

    def _stored_vectors(self) -> tuple[Int[Tensor, " m"], Float16[Tensor, "m d"]]:
        """Which rows are kept, and their vectors."""
        try:
            tensors, _ = load_tensors(self.path, kind="text-vectors")
        except StateError:  # absent or torn: it is only a cache
            return torch.empty(0, dtype=torch.long), torch.empty(0, 0, dtype=torch.float16)
        vectors = tensors["vectors"]
        return tensors.get("rows", torch.arange(len(vectors))), vectors  # version 0.1 kept whole chunks only


Rows = list[int]  # of one chunk, ascending
Read = Callable[[WordChunk, Rows], Float[Tensor, "m d"]]


def chunk_corpus(
    corpus: Corpus, encoder: TextIdentity, prompts: CorpusPrompts, *, cache: Path | None = None
) -> list[WordChunk]:
    """The corpus in the parts that are kept together, always the same."""
    identity = text_fingerprint(encoder)
    folder = (cache or cache_dir()) / "texts" / identity[:32]
    chunks = []
    for is_adjective, words in _chunks_of_lists(corpus):
        prompt = prompts.adjectives if is_adjective else prompts.nouns
        header = json.dumps([encoder.name, identity, prompt.description, list(words)], ensure_ascii=False)
        path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.safetensors"
        chunks.append(WordChunk(words, is_adjective, prompt, path, header))
    return chunks


def distinct_rows(chunks: Iterable[WordChunk], names: Iterable[str] = ()) -> list[Rows]:
    """The rows of each chunk that may be mined: each spelling once, less the known names."""
    taken = set(map(canonical_spelling, names))
    return [distinct_words(chunk.words, taken) for chunk in chunks]


def encode_rows(
    chunks: Sequence[WordChunk], rows: Sequence[Rows], encoder: TextEncoder, *, progress: Progress = no_progress
) -> None:
    """Encode some rows of each chunk; what an earlier run encoded is read, not encoded again."""
    total, done = sum(map(len, rows)), 0
    for chunk, wanted in zip(chunks, rows, strict=True):
        for start in range(0, len(wanted), STEP):
            part = wanted[start : start + STEP]
            chunk.add(part, encoder)
            progress(done := done + len(part), total)


def candidates(chunks: Iterable[WordChunk], rows: Iterable[Rows], read: Read) -> list[Candidates]:
    """Some rows of each chunk, with vectors that `read` gets when they are asked for."""
    return [_candidates(chunk, wanted, read) for chunk, wanted in zip(chunks, rows, strict=True) if wanted]


def encode_corpus(
    corpus: Corpus, encoder: TextEncoder, prompts: CorpusPrompts, *, progress: Progress = no_progress
) -> list[Candidates]:
    """Every word of a corpus once, with its exact vector."""
    chunks = chunk_corpus(corpus, encoder, prompts)
    rows = distinct_rows(chunks)
    encode_rows(chunks, rows, encoder, progress=progress)
    return candidates(chunks, rows, WordChunk.read)


def _chunks_of_lists(corpus: Corpus) -> Iterator[tuple[bool, Sequence[str]]]:
    # chunks never span lists, so leaving out a list leaves the cached vectors of the others in use
    for name, words in corpus.lists.items():
        for start in range(0, len(words), CHUNK):
            yield name.startswith("adj."), words[start : start + CHUNK]


def _candidates(chunk: WordChunk, rows: Rows, read: Read) -> Candidates:
    def load() -> Float[Tensor, "n d"]:
        return normalize(read(chunk, rows).float(), dim=-1)

    return Candidates(tuple(chunk.words[row] for row in rows), chunk.is_adjective, load)
