"""Names for a group of images out of a list of words: both are directions from the mean of their kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.discover.clustering import NUMBERS
from unseen.errors import LabelError
from unseen.labels import LabelSpace
from unseen.vocabulary import canonical_spelling

COUNT = 5
GROUPS = 64  # groups that are named at once
NEAREST = 20  # words of a group whose families are looked at
SPREAD = 0.3  # share of a family that its largest kind may take where the group is called by the family


@dataclass(frozen=True)
class Suggestion:
    """A word for a group, and its mean share over the images: how much of the softmax over all words it takes.

    A word that stands for its kinds has their shares too.
    """

    word: str
    share: float


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words that groups may be called by, with their text vectors."""

    words: tuple[str, ...]
    vectors: Float[Tensor, "w d"]

    def __post_init__(self) -> None:
        """Refuse vectors that do not belong to the words."""
        if len(self.words) != len(self.vectors):
            raise LabelError(f"expected a vector per word, got {len(self.words)} words and {len(self.vectors)} vectors")

    def with_names(self, labels: LabelSpace) -> Vocabulary:
        """The known names of a label space, then the words that none of them is spelled like."""
        others = self.without(labels.names)
        vectors = torch.cat([labels.id_anchors.float().cpu(), others.vectors])
        return Vocabulary((*labels.names, *others.words), vectors)

    def without(self, names: Sequence[str]) -> Vocabulary:
        """The words that none of `names` is spelled like."""
        taken = set(map(canonical_spelling, names))
        rows = [row for row, word in enumerate(self.words) if canonical_spelling(word) not in taken]
        return Vocabulary(tuple(self.words[row] for row in rows), self.vectors[rows])

    @classmethod
    def of_space(cls, labels: LabelSpace) -> Vocabulary:
        """The negatives of a label space: words that are there without an encoder."""
        return cls(labels.negatives, labels.ood_anchors.float().cpu())

    @cached_property
    def directions(self) -> Float[Tensor, "w d"]:
        """Each word as a direction from the mean word."""
        return normalize(self.vectors - self.vectors.mean(0), dim=-1)

    def shares(self, groups: Sequence[Float[Tensor, "n d"]]) -> Iterator[Float[Tensor, " w"]]:
        """Yield the mean share of each word over the images of each group, which are directions from the mean image."""
        for start in range(0, len(groups), GROUPS):
            some = groups[start : start + GROUPS]
            share = (torch.cat(list(some)) @ self.directions.T / NUMBERS.word_tau).softmax(1)
            yield from (part.mean(0) for part in share.split([len(images) for images in some]))


class Families:
    """Words with their kinds, which are words that end with them: truck has dump truck and fire truck."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self._kinds: dict[int, list[int]] = {}
        self._heads: dict[int, list[int]] = {}
        place = {canonical_spelling(word): row for row, word in enumerate(words)}
        for row, parts in enumerate(canonical_spelling(word).split() for word in words):
            for start in range(1, len(parts)):
                if (head := place.get(" ".join(parts[start:]))) is not None:
                    self._kinds.setdefault(head, []).append(row)
                    self._heads.setdefault(row, []).append(head)

    def suggest(self, shares: Float[Tensor, " w"], *, count: int = COUNT) -> tuple[Suggestion, ...]:
        """The words with the largest shares, the largest first.

        A word whose share is spread over its kinds stands for all of them: images that are a bit of dump truck, of fire
        truck and of delivery truck are trucks. Where one kind takes `SPREAD` of the family or more, each counts alone.

        >>> found = Families(("dump truck", "fire truck", "ice truck", "truck", "ship"))
        >>> [word.word for word in found.suggest(torch.tensor([0.2, 0.2, 0.2, 0.1, 0.3]), count=2)]
        ['truck', 'ship']
        """
        near = shares.topk(min(NEAREST, len(shares))).indices.tolist()
        together = shares.clone()
        for head in {head for row in near for head in (row, *self._heads.get(row, ()))} & self._kinds.keys():
            kinds = shares[self._kinds[head]]
            family = shares[head] + kinds.sum()
            if kinds.max() < SPREAD * family:
                together[head] = family
        top = together.topk(min(count, len(shares)))
        found = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return tuple(Suggestion(self.words[row], round(value, 4)) for row, value in found)
