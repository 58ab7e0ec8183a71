"""Which words may be chosen as negatives, judged by approximate vectors: exact ones are computed for these alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.labels.corpus import Corpus
from unseen.labels.prompts import TextEncoder
from unseen.labels.vectors import Candidates, CorpusPrompts, Rows, WordChunk, chunk_corpus, distinct_rows

SLACK = 2.0  # errors of a cosine that a word may rank too high and still be read exactly


class WordCounts(NamedTuple):
    """How many words of each kind are chosen."""

    nouns: int
    adjectives: int


@runtime_checkable
class CoarseEncoder(TextEncoder, Protocol):
    """A text encoder that also has approximate vectors of some texts, at next to no cost."""

    @property
    def coarse_error(self) -> float:
        """The root mean square error of their cosines to text vectors."""

    def coarse_texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One approximate vector per text, NaN where there is none."""


def shortlist(
    chunks: Sequence[WordChunk],
    rows: Sequence[Rows],
    counts: WordCounts,
    encoder: TextEncoder,
    rank: Callable[[Sequence[Candidates]], Float[Tensor, " n"]],
) -> list[Rows]:
    """The rows of each chunk that rank lowest by approximate vectors, with slack, and those that have none.

    All rows come back where the encoder has no approximate vectors.
    """
    if not isinstance(encoder, CoarseEncoder) or not any(counts):
        return list(rows)
    words = [_coarse_candidates(*part, encoder) for part in zip(chunks, rows, strict=True)]
    ranks = rank(words)
    is_kept = ranks.isnan()
    for members, count in zip(_kinds(words), counts, strict=True):
        is_kept |= members & (ranks <= _bound(ranks[members], count) + SLACK * encoder.coarse_error)
    parts = is_kept.split([len(wanted) for wanted in rows])
    return [_where(*part) for part in zip(rows, parts, strict=True)]


def coarse_corpus(corpus: Corpus, encoder: TextEncoder, prompts: CorpusPrompts) -> list[Candidates] | None:
    """Every word of a corpus once, with an approximate vector; None where some word has none."""
    if not isinstance(encoder, CoarseEncoder):
        return None
    chunks = chunk_corpus(corpus, encoder, prompts)
    rows = distinct_rows(chunks)
    words = [_coarse_candidates(*part, encoder) for part in zip(chunks, rows, strict=True) if part[1]]
    return None if any(bool(part.load().isnan().any()) for part in words) else words


def _coarse_candidates(chunk: WordChunk, rows: Rows, encoder: CoarseEncoder) -> Candidates:
    words = tuple(chunk.words[row] for row in rows)
    return Candidates(words, chunk.is_adjective, partial(_coarse_vectors, chunk, words, encoder))


def _coarse_vectors(chunk: WordChunk, words: Sequence[str], encoder: CoarseEncoder) -> Float[Tensor, "n d"]:
    """The mean over the templates; it is not made unit, because an approximate vector is none."""
    texts = [text for word in words for text in chunk.prompt.texts(word)]
    if not texts:  # every word of a short list is a known name, or taken by another list
        return torch.empty(0, encoder.dim)
    return encoder.coarse_texts(texts).view(len(words), -1, encoder.dim).mean(1)


def _bound(ranks: Float[Tensor, " n"], count: int) -> float:
    """The `count`-th lowest rank; what has none counts as highest."""
    if count == 0 or not len(ranks):
        return -torch.inf
    return float(ranks.nan_to_num(torch.inf).kthvalue(min(count, len(ranks))).values)


def _where(rows: Rows, is_kept: Bool[Tensor, " n"]) -> Rows:
    return [row for row, kept in zip(rows, is_kept.tolist(), strict=True) if kept]


def _kinds(words: Sequence[Candidates]) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
    """Which candidates are nouns, and which are adjectives."""
    is_adjective = torch.cat([torch.full((len(part.words),), part.is_adjective) for part in words])
    return ~is_adjective, is_adjective


def lowest_of_each(
    words: Sequence[Candidates], ranks: Float[Tensor, " n"], counts: WordCounts
) -> list[Int[Tensor, " m"]]:
    """The positions of the lowest nouns and of the lowest adjectives, in ascending order."""
    return [_lowest(ranks, members, count) for members, count in zip(_kinds(words), counts, strict=True)]


def _lowest(ranks: Float[Tensor, " n"], members: Bool[Tensor, " n"], count: int) -> Int[Tensor, " m"]:
    positions = members.nonzero().flatten()
    return positions[ranks[positions].argsort(stable=True)[:count]]
