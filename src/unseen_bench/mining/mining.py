"""Published negatives: `mine` encodes names and a corpus as a paper words them, and lets its rule choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import LabelError
from unseen.labels import LabelSpace
from unseen.labels.names import check_new_names
from unseen.labels.prompts import Prompt, PromptTemplates, TextEncoder, as_prompt, text_fingerprint
from unseen.labels.vectors import word_vectors
from unseen.progress import shown_progress
from unseen.vocabulary import canonical_spelling
from unseen_bench.mining.corpus import Corpus, distinct_words
from unseen_bench.mining.miners import Miner, find_miner

DEFAULT_MINER = "vocabulary"  # the others read the corpus of their papers, 70,000 words


class Words(NamedTuple):
    """What a corpus has besides the known names, each spelling once."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]

    @classmethod
    def of(cls, corpus: Corpus, names: Iterable[str]) -> Words:
        """The words of a corpus in its order."""
        taken = set(map(canonical_spelling, names))
        kinds: dict[bool, list[str]] = {False: [], True: []}
        for name, words in corpus.lists.items():
            kinds[name.startswith("adj.")] += [words[place] for place in distinct_words(words, taken)]
        return cls(tuple(kinds[False]), tuple(kinds[True]))


def mine(
    names: Sequence[str],
    encoder: TextEncoder,
    *,
    negatives: int | None = 5_000,
    miner: str = DEFAULT_MINER,
    prompt: str | Sequence[str] | Prompt | None = None,
    corpus: Corpus | None = None,
    cache: Path | None = None,
) -> LabelSpace:
    """`names` with at most `negatives` negatives that a published rule chooses from `corpus`, deterministically.

    `negatives=None` keeps what the miner's paper keeps; `corpus` and `prompt` default to the miner's own. Vectors of
    the corpus are kept under `cache`, so that mining again takes seconds.

    >>> class Tower:                      # stands for what `load_encoder` returns
    ...     name, dim, fingerprint = "letters", 26, "first"
    ...     def texts(self, prompts):
    ...         counts = [[p.count(chr(97 + i)) + 0.1 for i in range(26)] for p in prompts]
    ...         return torch.nn.functional.normalize(torch.tensor(counts))
    >>> words = Corpus("mine", {"noun.own": ("piano", "lamp", "catalogue", "engine")})
    >>> mine(["cat"], Tower(), negatives=2, corpus=words).negatives
    ('engine', 'lamp')
    """
    names, rule = check_new_names(names), find_miner(miner)
    chosen = rule.prompt if prompt is None else as_prompt(prompt)
    # learned vectors cover the names only; candidates are then worded as the miner says
    nouns = rule.noun_prompt or (chosen if isinstance(chosen, PromptTemplates) else rule.prompt)
    anchors = chosen.encode(names, encoder).cpu()
    source = rule.corpus() if corpus is None else corpus
    source = source.without(set(rule.excluded) & set(source.lists))
    words = Words((), ()) if negatives == 0 else Words.of(source, names)
    if negatives != 0 and not any(words):
        raise LabelError(
            f"expected words besides the known names in {source.name}, got none; pass other words, or negatives=0"
        )
    with shown_progress("words", None) as report:
        vectors = [
            word_vectors(some, way, encoder, cache=cache, name=source.name, progress=report)
            for some, way in zip(words, (nouns, rule.adjective_prompt), strict=True)
        ]
    every = torch.cat(vectors)
    rows = _choose(rule.rank(every, anchors) if len(every) else torch.empty(0), words, _counts(words, rule, negatives))
    return LabelSpace(
        names=names,
        negatives=tuple([*words.nouns, *words.adjectives][row] for row in rows.tolist()),
        id_anchors=anchors,
        ood_anchors=every[rows],
        prompt=chosen.description,
        encoder=encoder.name,
        manifest={
            "miner": miner,
            "rule": rule.rule,
            "corpus": source.name,
            "corpus_fingerprint": source.fingerprint,
            "lists": " ".join(source.lists),
            "negatives": "the miner's share" if negatives is None else str(negatives),
            "noun_prompt": nouns.description,
            "adjective_prompt": rule.adjective_prompt.description,
            "encoder_fingerprint": encoder.fingerprint,
            "text_fingerprint": text_fingerprint(encoder),
        },
    )


def _choose(ranks: Float[Tensor, " n"], words: Words, counts: Sequence[int]) -> Int[Tensor, " L"]:
    """The rows of the lowest words, mixed so that every prefix keeps nouns and adjectives in proportion."""
    nouns, adjectives = ranks.split([*map(len, words)])
    chosen = [part.argsort(stable=True)[:count] for part, count in zip((nouns, adjectives), counts, strict=True)]
    place = torch.cat([(torch.arange(len(part)) + 0.5) / max(len(part), 1) for part in chosen])
    return torch.cat([chosen[0], len(nouns) + chosen[1]])[place.argsort(stable=True)]


def _counts(words: Words, miner: Miner, negatives: int | None) -> tuple[int, int]:
    """How many nouns and adjectives to keep: the miner's shares, or `negatives` in all in their proportion."""
    nouns, adjectives = map(len, words)
    negatives = miner.count if negatives is None else negatives
    if negatives is None:
        return int(miner.noun_share * nouns), int(miner.adjective_share * adjectives)
    if negatives < 0:
        raise LabelError(f"expected a number of negatives of at least 0, got {negatives}; pass for example 10000")
    total = min(negatives, nouns + adjectives)
    noun_weight, adjective_weight = miner.noun_share * nouns, miner.adjective_share * adjectives
    share = adjective_weight / max(adjective_weight + noun_weight, 1e-9)
    kept_adjectives = max(min(round(total * share), adjectives), total - nouns)
    return total - kept_adjectives, kept_adjectives
