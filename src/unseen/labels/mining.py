"""Choose negatives from a corpus: each published rule is one row of MINERS, all run by `mine`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.errors import LabelError, SettingError
from unseen.labels.corpus import Corpus, key, wordnet
from unseen.labels.prompts import (
    CSP,
    CSP_ADJECTIVES,
    NICE,
    NICE_ADJECTIVE,
    Prompt,
    TextEncoder,
    TextIdentity,
    Wording,
    as_wording,
    text_identity,
)
from unseen.labels.space import LabelSpace
from unseen.labels.vectors import Block, Report, encode_corpus

QUANTILE = 0.95
TOO_NEAR = 0.95  # CSP: a candidate this close to a known name is another word for it
NEIGHBOURS = 100  # DNM
TILE = 1024
FLOOR = 1e-6  # two spellings can share a vector, and log(0) would outrank everything

Rank = Callable[[Sequence[Block], Float[Tensor, "K d"]], Float[Tensor, " n"]]


def order_statistic(cosines: Float[Tensor, "n K"], position: float) -> Float[Tensor, " n"]:
    """Return each row's value at a fractional place of its ascending order, interpolated linearly."""
    below = int(position)
    top = cosines.topk(cosines.shape[1] - below, dim=1).values  # sorting the rest would be wasted
    above = top[:, max(top.shape[1] - 2, 0)]
    return torch.lerp(top[:, -1], above, position - below)


def quantile(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """Return the .95 quantile of each candidate's cosines to the known names (NegLabel)."""
    return order_statistic(cosines, QUANTILE * (cosines.shape[1] - 1))


def sorted_cosine(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """Return each candidate's cosine at index int(.95 K) of the ascending order (AdaNeg)."""
    known = cosines.shape[1]
    return order_statistic(cosines, min(int(QUANTILE * known), known - 1))


def quantile_far_first(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """Return NegLabel's quantile, with candidates that all but equal a known name put last (CSP)."""
    is_twin = cosines.amax(1) > TOO_NEAR
    return quantile(cosines) + 4.0 * is_twin  # cosines span 2


def by_names(criterion: Callable[[Tensor], Tensor]) -> Rank:
    """Return a ranking that looks at one block of candidates at a time."""

    def rank(blocks: Sequence[Block], anchors: Float[Tensor, "K d"]) -> Float[Tensor, " n"]:
        return torch.cat([criterion(block.load() @ anchors.T) for block in blocks])

    return rank


def by_density(blocks: Sequence[Block], anchors: Float[Tensor, "K d"]) -> Float[Tensor, " n"]:
    """Return each candidate's mean log distance to its 100 nearest other candidates (DNM); the names play no part."""
    words = torch.cat([block.load().half() for block in blocks])
    return torch.cat([_log_distance(words, start) for start in range(0, len(words), TILE)])


def _log_distance(words: Float[Tensor, "n d"], start: int) -> Float[Tensor, " t"]:
    rows = words[start : start + TILE].float()
    nearest = torch.empty(len(rows), 0)
    for left in range(0, len(words), 16 * TILE):
        cosines = rows @ words[left : left + 16 * TILE].float().T
        if left <= start < left + 16 * TILE:
            cosines.diagonal(offset=start - left).fill_(-torch.inf)  # a word is not its own neighbour
        nearest = torch.cat([nearest, cosines], 1)
        nearest = nearest.topk(min(NEIGHBOURS, nearest.shape[1])).values
    others = nearest[:, : max(min(NEIGHBOURS, len(words) - 1), 1)]
    return (2 - 2 * others).clamp(min=FLOOR).sqrt().log().mean(1)


@dataclass(frozen=True)
class Miner:
    """One published rule: which lists it reads, how it words them, how it ranks (low = negative), how much it keeps."""

    rule: str
    rank: Rank
    excluded: tuple[str, ...]
    noun_share: float
    adjective_share: float
    count: int | None = None
    prompt: Wording = NICE
    adjectives: Wording = NICE_ADJECTIVE


NO_CORPUS = Corpus("none", {"noun.none": ("thing",)})  # where no negatives are wanted, WordNet need not be encoded
UNMINED = ("noun.animal", "noun.food")  # the lists NegLabel's corpus does not have
CSP_UNMINED = (*UNMINED, "noun.person", "noun.quantity", "noun.group", "adj.pert")
MINERS: dict[str, Miner] = {
    "neglabel": Miner("lowest .95 quantile of cosines to the names", by_names(quantile), UNMINED, 0.15, 0.15),
    "adaneg": Miner("lowest sorted cosine at int(.95 K)", by_names(sorted_cosine), UNMINED, 0.15, 0.15, count=10_000),
    "csp": Miner(
        "lowest .95 quantile of cosines to the names, cosine above .95 to any name last",
        by_names(quantile_far_first),
        CSP_UNMINED,
        0.15,
        0.15,
        prompt=CSP,
        adjectives=CSP_ADJECTIVES,
    ),
    "dnm": Miner("lowest mean log distance to the 100 nearest words", by_density, UNMINED, 0.23, 0.13),
}


def mine(
    names: Sequence[str],
    encoder: TextEncoder,
    *,
    negatives: int | None,
    miner: str,
    prompt: str | Sequence[str] | Wording | None,
    corpus: Corpus | None,
    excluded: Iterable[str] | None,
    cache: Path | None,
    report: Report,
) -> LabelSpace:
    """Return the names with negatives chosen by a miner; `LabelSpace.build` explains the options."""
    recipe = Recipe.of(miner, negatives=negatives, prompt=prompt, corpus=corpus, excluded=excluded)
    anchors = recipe.wording.encode(names, encoder).cpu()
    blocks = encode_corpus(recipe.pool, encoder, recipe.wordings, own=spelled(names), cache=cache, report=report)
    return recipe.space(names, anchors, blocks, encoder)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides which negatives are chosen, but for the names and the encoder."""

    miner: str
    negatives: int | None
    wording: Wording
    pool: Corpus

    @classmethod
    def of(
        cls,
        miner: str,
        *,
        negatives: int | None,
        prompt: str | Sequence[str] | Wording | None,
        corpus: Corpus | None,
        excluded: Iterable[str] | None,
    ) -> Recipe:
        """Return the recipe with what the miner says where nothing else is said."""
        chosen = _miner(miner)
        wording = chosen.prompt if prompt is None else as_wording(prompt)
        pool = NO_CORPUS if negatives == 0 else _pool(corpus, chosen, excluded)
        return cls(miner, negatives, wording, pool)

    @property
    def wordings(self) -> dict[bool, Wording]:
        """Return how nouns (False) and adjectives (True) of the corpus are worded."""
        chosen = MINERS[self.miner]
        # learned vectors cover the names only; candidates are then worded as the miner says
        nouns = self.wording if isinstance(self.wording, Prompt) else chosen.prompt
        return {False: nouns, True: chosen.adjectives}

    def space(
        self, names: Sequence[str], anchors: Float[Tensor, "K d"], blocks: Sequence[Block], encoder: TextIdentity
    ) -> LabelSpace:
        """Return the names with their negatives, from vectors of both."""
        chosen = MINERS[self.miner]
        picked = _pick(blocks, chosen.rank(blocks, anchors), chosen, self.negatives)
        words = [word for block in blocks for word in block.words]
        return LabelSpace(
            names=tuple(names),
            negatives=tuple(words[i] for i in picked.tolist()),
            id_anchors=anchors,
            ood_anchors=_gather(blocks, picked, anchors.shape[1]),
            prompt=self.wording.label,
            encoder=encoder.name,
            manifest=self._manifest(encoder),
        )

    def _manifest(self, encoder: TextIdentity) -> dict[str, str]:
        nouns, adjectives = self.wordings.values()
        return {
            "miner": self.miner,
            "rule": MINERS[self.miner].rule,
            "corpus": self.pool.name,
            "corpus_fingerprint": self.pool.fingerprint,
            "lists": " ".join(self.pool.lists),
            "negatives": "the miner's share" if self.negatives is None else str(self.negatives),
            "noun_prompt": nouns.label,
            "adjective_prompt": adjectives.label,
            "encoder_fingerprint": encoder.fingerprint,
            "text_fingerprint": text_identity(encoder),
        }


def spelled(names: Iterable[str]) -> set[str]:
    """Return the spellings that negatives must not have."""
    return {key(name) for name in names}


def _miner(name: str) -> Miner:
    if name not in MINERS:
        raise SettingError(f"expected one of the miners {', '.join(MINERS)}, got {name!r}; choose one of them")
    return MINERS[name]


def _pool(corpus: Corpus | None, miner: Miner, excluded: Iterable[str] | None) -> Corpus:
    source = wordnet() if corpus is None else corpus
    if excluded is None:
        return source.without(set(miner.excluded) & set(source.lists))
    return source.without(excluded)


def _pick(blocks: Sequence[Block], ranks: Tensor, miner: Miner, negatives: int | None) -> Int[Tensor, " L"]:
    """Return the positions of the chosen words, mixed so that every prefix keeps nouns and adjectives in proportion."""
    is_adjective = torch.cat([torch.full((len(block.words),), block.is_adjective) for block in blocks])
    counts = _counts(is_adjective, miner, miner.count if negatives is None else negatives)
    parts = []
    for part, count in zip((~is_adjective, is_adjective), counts, strict=True):
        members = part.nonzero().flatten()
        parts.append(members[ranks[members].argsort(stable=True)[:count]])
    place = torch.cat([(torch.arange(len(part)) + 0.5) / max(len(part), 1) for part in parts])
    return torch.cat(parts)[place.argsort(stable=True)]


def _counts(is_adjective: Bool[Tensor, " n"], miner: Miner, negatives: int | None) -> tuple[int, int]:
    """Return how many nouns and adjectives to keep: the miner's shares, or `negatives` in all in their proportion."""
    adjectives = int(is_adjective.sum())
    nouns = len(is_adjective) - adjectives
    if negatives is None:
        return int(miner.noun_share * nouns), int(miner.adjective_share * adjectives)
    if negatives < 0:
        raise LabelError(f"expected a number of negatives of at least 0, got {negatives}; pass for example 10000")
    total = min(negatives, len(is_adjective))
    weight = (
        miner.adjective_share * adjectives / max(miner.adjective_share * adjectives + miner.noun_share * nouns, 1e-9)
    )
    of_adjectives = max(min(round(total * weight), adjectives), total - nouns)
    return total - of_adjectives, of_adjectives


def _gather(blocks: Sequence[Block], picked: Int[Tensor, " L"], width: int) -> Float[Tensor, "L d"]:
    anchors = torch.empty(len(picked), width)
    start = 0
    for block in blocks:
        mine = ((picked >= start) & (picked < start + len(block.words))).nonzero().flatten()
        if len(mine):
            anchors[mine] = block.load()[picked[mine] - start]
        start += len(block.words)
    return anchors
