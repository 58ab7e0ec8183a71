"""Names for groups of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen.discover import Suggestion, Vocabulary
from unseen.discover.naming import Families

EXACT = normalize(torch.randn(60, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
WORDS = tuple(f"word {i}" for i in range(60))


def approximate(asked: list[str]) -> Vocabulary:
    def encode(words: Sequence[str]) -> Tensor:
        asked.extend(words)
        return EXACT[[WORDS.index(word) for word in words]]

    noise = 0.2 * torch.randn(EXACT.shape, generator=torch.Generator().manual_seed(1))
    return Vocabulary(WORDS, normalize(EXACT + noise, dim=-1), encode)


def test_the_words_that_suit_a_group_get_exact_vectors_and_the_others_are_not_encoded() -> None:
    asked: list[str] = []
    words = approximate(asked)
    refined = words.refined([EXACT[7:8]])
    assert "word 7" in asked
    assert len(asked) == 20
    rows = [WORDS.index(word) for word in asked]
    assert torch.equal(refined.vectors[rows], EXACT[rows])
    others = [row for row in range(60) if row not in rows]
    assert torch.equal(refined.vectors[others], words.vectors[others])
    assert refined.refined([EXACT[8:9]]) is refined


def test_vectors_of_known_names_stay_as_they_are() -> None:
    asked: list[str] = []
    approximate(asked).refined([EXACT[7:8]], exact=10)
    assert asked
    assert not {f"word {i}" for i in range(10)} & set(asked)
    assert approximate(asked).without(["word 3"]).encode is not None


def test_a_word_stands_for_its_kinds_where_no_kind_takes_most_of_the_family() -> None:
    words = ("Bunk-bed", "camp bed", "single bed", "sofa bed", "bed", "bedstraw", "sheet")
    spread = torch.tensor([0.15, 0.14, 0.13, 0.12, 0.01, 0.16, 0.29])
    assert Families(words).suggest(spread)[0] == Suggestion("bed", 0.55)
    one_kind = torch.tensor([0.55, 0.01, 0.01, 0.01, 0.05, 0.1, 0.27])
    found = Families(words).suggest(one_kind)
    assert [one.word for one in found[:2]] == ["Bunk-bed", "sheet"]
    assert Suggestion("bed", 0.05) in found
    assert [one.word for one in Families(("ship", "car")).suggest(torch.tensor([0.4, 0.6]))] == ["car", "ship"]
