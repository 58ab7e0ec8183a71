"""Known names in, a label space out: `build` encodes the names and a corpus, and lets a miner choose the negatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import LabelError
from unseen.labels.corpus import Corpus
from unseen.labels.examples import Examples
from unseen.labels.miners import DEFAULT_MINER, MINERS, Miner, find_miner
from unseen.labels.names import check_new_names
from unseen.labels.prompts import Prompt, PromptTemplates, TextEncoder, TextIdentity, as_prompt, text_fingerprint
from unseen.labels.residuals import with_examples
from unseen.labels.shortlist import WordCounts, lowest_of_each, shortlist
from unseen.labels.space import LabelSpace
from unseen.labels.vectors import (
    Candidates,
    CorpusPrompts,
    Rows,
    WordChunk,
    candidates,
    chunk_corpus,
    distinct_rows,
    encode_rows,
)
from unseen.progress import Progress, shown_progress

NEGATIVES = 5_000  # the default of commands, Python and service alike
NO_CORPUS = Corpus("none", {"noun.none": ("thing",)})  # where no negatives are wanted, WordNet need not be encoded


def build(
    names: Sequence[str],
    encoder: TextEncoder,
    *,
    negatives: int | None = NEGATIVES,
    miner: str = DEFAULT_MINER,
    prompt: str | Sequence[str] | Prompt | None = None,
    corpus: Corpus | None = None,
    excluded: Iterable[str] | None = None,
    cache: Path | None = None,
    exact: bool = False,
    examples: Examples | None = None,
    progress: Progress | None = None,
) -> LabelSpace:
    """`names` with at most `negatives` negatives mined from `corpus`, deterministically.

    `negatives=None` keeps what the miner's paper keeps; `corpus`, `prompt` and `excluded` (lists of the corpus) default
    to the miner's own; the default miner reads twice as many words of WordNet as negatives are wanted. Vectors of the
    corpus are kept under `cache`, so that mining again takes seconds. If the encoder has approximate vectors of the
    corpus, only words that may be chosen are encoded; `exact` encodes them all. `progress(done, total)` is called
    while words are encoded; without it, a terminal shows a bar. `examples` of the
    names move their anchors, as far as examples left out agree (`labels.with_examples`).

    >>> from unseen.labels import Corpus
    >>> class Tower:                      # stands for what `load_encoder` returns
    ...     name, dim, fingerprint = "letters", 26, "first"
    ...     def texts(self, prompts):
    ...         counts = [[p.count(chr(97 + i)) + 0.1 for i in range(26)] for p in prompts]
    ...         return torch.nn.functional.normalize(torch.tensor(counts))
    >>> words = Corpus("mine", {"noun.own": ("piano", "lamp", "catalogue", "engine")})
    >>> build(["cat"], Tower(), negatives=2, corpus=words).negatives
    ('engine', 'lamp')
    """
    names = check_new_names(names)
    spec = MiningSpec.of(miner, negatives=negatives, prompt=prompt, corpus=corpus, excluded=excluded)
    anchors = spec.prompt.encode(names, encoder).cpu()
    chunks = chunk_corpus(spec.corpus, encoder, spec.corpus_prompts, cache=cache)
    rows = distinct_rows(chunks, names)
    if chunks and not any(map(len, rows)):
        raise LabelError(
            f"expected words besides the known names in {spec.corpus.name}, got none; pass other words, or negatives=0"
        )
    counts = spec.counts(chunks, rows)
    if not exact and MINERS[miner].is_separable:
        rows = shortlist(chunks, rows, counts, encoder, lambda words: MINERS[miner].rank(words, anchors))
    with shown_progress("words", progress) as report:
        encode_rows(chunks, rows, encoder, progress=report)
    space = spec.label_space(names, anchors, candidates(chunks, rows, WordChunk.read), encoder, counts)
    return with_examples(space, examples) if examples is not None else space


@dataclass(frozen=True)
class MiningSpec:
    """Everything that decides which negatives are chosen, but for the names and the encoder."""

    miner: str
    negatives: int | None
    prompt: Prompt
    corpus: Corpus

    @classmethod
    def of(
        cls,
        miner: str,
        *,
        negatives: int | None,
        prompt: str | Sequence[str] | Prompt | None,
        corpus: Corpus | None,
        excluded: Iterable[str] | None,
    ) -> MiningSpec:
        """The spec; what is None is as the miner says."""
        rule = find_miner(miner)
        chosen = rule.prompt if prompt is None else as_prompt(prompt)
        if negatives == 0:
            return cls(miner, negatives, chosen, NO_CORPUS)
        if corpus is None and miner == DEFAULT_MINER and negatives is not None:
            corpus = rule.corpus().thinned(corpus_size_for(negatives))
        return cls(miner, negatives, chosen, _mined_lists(corpus, rule, excluded))

    @property
    def corpus_prompts(self) -> CorpusPrompts:
        """The prompts of the corpus' nouns and adjectives."""
        rule = MINERS[self.miner]
        # learned vectors cover the names only; candidates are then worded as the miner says
        nouns = self.prompt if isinstance(self.prompt, PromptTemplates) else rule.prompt
        return CorpusPrompts(rule.noun_prompt or nouns, rule.adjective_prompt)

    def counts(self, chunks: Iterable[WordChunk], rows: Iterable[Rows]) -> WordCounts:
        """How many nouns and how many adjectives of these rows become negatives."""
        rule = MINERS[self.miner]
        sizes = [(chunk.is_adjective, len(wanted)) for chunk, wanted in zip(chunks, rows, strict=True)]
        adjectives = sum(size for is_adjective, size in sizes if is_adjective)
        nouns = sum(size for _, size in sizes) - adjectives
        return _counts(nouns, adjectives, rule, rule.count if self.negatives is None else self.negatives)

    def label_space(
        self,
        names: Sequence[str],
        anchors: Float[Tensor, "K d"],
        words: Sequence[Candidates],
        encoder: TextIdentity,
        counts: WordCounts,
    ) -> LabelSpace:
        """The names with their negatives, from vectors of both."""
        chosen = _choose(words, MINERS[self.miner].rank(words, anchors), counts)
        all_words = [word for part in words for word in part.words]
        return LabelSpace(
            names=tuple(names),
            negatives=tuple(all_words[i] for i in chosen.tolist()),
            id_anchors=anchors,
            ood_anchors=_vectors_at(chosen, words, anchors.shape[1]),
            prompt=self.prompt.description,
            encoder=encoder.name,
            manifest=self._manifest(encoder),
        )

    def _manifest(self, encoder: TextIdentity) -> dict[str, str]:
        nouns, adjectives = self.corpus_prompts
        return {
            "miner": self.miner,
            "rule": MINERS[self.miner].rule,
            "corpus": self.corpus.name,
            "corpus_fingerprint": self.corpus.fingerprint,
            "lists": " ".join(self.corpus.lists),
            "negatives": "the miner's share" if self.negatives is None else str(self.negatives),
            "noun_prompt": nouns.description,
            "adjective_prompt": adjectives.description,
            "encoder_fingerprint": encoder.fingerprint,
            "text_fingerprint": text_fingerprint(encoder),
        }


def corpus_size_for(negatives: int) -> int:
    """How many words of WordNet negatives are chosen from, unless something else is asked for.

    Half of few words do as well as the extreme tenth of many: `benchmarks/vocabulary.py`.
    """
    return 2 * negatives


def _mined_lists(corpus: Corpus | None, miner: Miner, excluded: Iterable[str] | None) -> Corpus:
    source = miner.corpus() if corpus is None else corpus
    return source.without(set(miner.excluded) & set(source.lists) if excluded is None else excluded)


def _choose(words: Sequence[Candidates], ranks: Float[Tensor, " n"], counts: WordCounts) -> Int[Tensor, " L"]:
    """The positions of the chosen words, mixed so that every prefix keeps nouns and adjectives in proportion."""
    chosen = lowest_of_each(words, ranks, counts)
    place = torch.cat([(torch.arange(len(part)) + 0.5) / max(len(part), 1) for part in chosen])
    return torch.cat(chosen)[place.argsort(stable=True)]


def _counts(nouns: int, adjectives: int, miner: Miner, negatives: int | None) -> WordCounts:
    """How many nouns and adjectives to keep: the miner's shares, or `negatives` in all in their proportion."""
    if negatives is None:
        return WordCounts(int(miner.noun_share * nouns), int(miner.adjective_share * adjectives))
    if negatives < 0:
        raise LabelError(f"expected a number of negatives of at least 0, got {negatives}; pass for example 10000")
    total = min(negatives, nouns + adjectives)
    noun_weight, adjective_weight = miner.noun_share * nouns, miner.adjective_share * adjectives
    share = adjective_weight / max(adjective_weight + noun_weight, 1e-9)
    kept_adjectives = max(min(round(total * share), adjectives), total - nouns)
    return WordCounts(total - kept_adjectives, kept_adjectives)


def _vectors_at(chosen: Int[Tensor, " L"], words: Sequence[Candidates], width: int) -> Float[Tensor, "L d"]:
    """The vectors of the chosen words, loading one part of the candidates at a time."""
    vectors = torch.empty(len(chosen), width)
    start = 0
    for part in words:
        here = ((chosen >= start) & (chosen < start + len(part.words))).nonzero().flatten()
        if len(here):
            vectors[here] = part.load()[chosen[here] - start]
        start += len(part.words)
    return vectors
