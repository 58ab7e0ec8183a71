"""Names for groups of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen.discover import Vocabulary

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
