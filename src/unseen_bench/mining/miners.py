"""The published rules that rank candidate words: each is one row of MINERS."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import check_choice
from unseen.labels.prompts import (
    CSP,
    CSP_ADJECTIVES,
    NEGLABEL,
    NEGLABEL_ADJECTIVE,
    NICE,
    NICE_ADJECTIVE,
    PHOTO,
    PHOTO_OF,
    WordedPrompt,
)
from unseen_bench.mining.corpus import Corpus, synset_names, vocabulary

QUANTILE = 0.95
DUPLICATE = 0.95  # CSP: a candidate this close to a known name is another word for it
NEIGHBOURS = 100  # DNM
TILE = 1024
EXCLUDED = ("noun.animal", "noun.food")  # the lists NegLabel's corpus does not have
FLOOR = 1e-6  # two spellings can share a vector, and log(0) would outrank everything

Rank = Callable[[Float[Tensor, "n d"], Float[Tensor, "K d"]], Float[Tensor, " n"]]


def order_statistic(cosines: Float[Tensor, "n K"], position: float) -> Float[Tensor, " n"]:
    """Each row's value at a fractional place of its ascending order, interpolated linearly."""
    below = int(position)
    top = cosines.topk(cosines.shape[1] - below, dim=1).values  # sorting the rest would be wasted
    above = top[:, max(top.shape[1] - 2, 0)]
    return torch.lerp(top[:, -1], above, position - below)


def quantile(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """The .95 quantile of each candidate's cosines to the known names (NegLabel)."""
    return order_statistic(cosines, QUANTILE * (cosines.shape[1] - 1))


def sorted_cosine(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """Each candidate's cosine at index int(.95 K) of the ascending order (AdaNeg)."""
    known = cosines.shape[1]
    return order_statistic(cosines, min(int(QUANTILE * known), known - 1))


def quantile_duplicates_last(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """NegLabel's quantile, with candidates that all but equal a known name put last (CSP)."""
    is_duplicate = cosines.amax(1) > DUPLICATE
    return quantile(cosines) + 4.0 * is_duplicate  # cosines span 2


def fiftieth_cosine(cosines: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
    """Each candidate's 50th highest cosine to the known names, the lowest where there are fewer (CLIPScope)."""
    return cosines.topk(min(50, cosines.shape[1]), dim=1).values[:, -1]


def by_cosine(criterion: Callable[[Tensor], Tensor]) -> Rank:
    """A ranking of words by their cosines to the names."""

    def rank(words: Float[Tensor, "n d"], anchors: Float[Tensor, "K d"]) -> Float[Tensor, " n"]:
        return torch.cat([criterion(part @ anchors.T) for part in words.split(4 * TILE)])

    return rank


def by_density(words: Float[Tensor, "n d"], anchors: Float[Tensor, "K d"]) -> Float[Tensor, " n"]:
    """Each candidate's mean log distance to its 100 nearest other candidates (DNM); the names play no part."""
    halves = words.half()
    return torch.cat([_log_distance(halves, start) for start in range(0, len(words), TILE)])


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
    excluded: tuple[str, ...] = EXCLUDED
    noun_share: float = 0.15
    adjective_share: float = 0.15
    count: int | None = None
    prompt: WordedPrompt = NICE
    adjective_prompt: WordedPrompt = NICE_ADJECTIVE
    noun_prompt: WordedPrompt | None = None  # where nouns of the corpus are worded otherwise than the known names
    corpus: Callable[[], Corpus] = synset_names


CSP_EXCLUDED = (*EXCLUDED, "noun.person", "noun.quantity", "noun.group", "adj.pert")
NEGLABEL_RULE = "lowest .95 quantile of cosines to the names"
ADJECTIVES = ("adj.all", "adj.pert", "adj.ppl")
NEGLABEL_PROMPTS: Any = {"prompt": NEGLABEL, "adjective_prompt": NEGLABEL_ADJECTIVE}
NOUNS: Any = {"excluded": ADJECTIVES, "noun_share": 1.0, "adjective_share": 0.0, "count": 5_000, "prompt": PHOTO}
MINERS: dict[str, Miner] = {
    "vocabulary": Miner(NEGLABEL_RULE, by_cosine(quantile), corpus=vocabulary),
    "neglabel": Miner(NEGLABEL_RULE, by_cosine(quantile), count=10_499, **NEGLABEL_PROMPTS),
    "online": Miner(NEGLABEL_RULE, by_cosine(quantile), count=10_000),
    "adaneg": Miner("lowest sorted cosine at int(.95 K)", by_cosine(sorted_cosine), count=10_000),
    "csp": Miner(
        "lowest .95 quantile of cosines to the names, cosine above .95 to any name last",
        by_cosine(quantile_duplicates_last),
        CSP_EXCLUDED,
        prompt=CSP,
        adjective_prompt=CSP_ADJECTIVES,
    ),
    "dnm": Miner(
        "lowest mean log distance to the 100 nearest words",
        by_density,
        noun_share=0.23,
        adjective_share=0.13,
        **NEGLABEL_PROMPTS,
    ),
    "tanl": Miner("the whole corpus", by_cosine(quantile), noun_share=1.0, adjective_share=1.0),
    "clipscope-near": Miner(
        "highest 50th cosine to the names", by_cosine(lambda cosines: -fiftieth_cosine(cosines)), **NOUNS
    ),
    "clipscope-far": Miner(
        "lowest 50th cosine to the names", by_cosine(fiftieth_cosine), noun_prompt=PHOTO_OF, **NOUNS
    ),
}


def find_miner(name: str) -> Miner:
    """The rule called `name`."""
    check_choice("a miner", name, MINERS)
    return MINERS[name]
