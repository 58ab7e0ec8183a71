"""Move what was learned to another label space: rows of words go where the words have gone."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from unseen.labels import LabelSpace


class OldPlaces(NamedTuple):
    """Where the words of a label space stood in another: names first, then negatives, -1 for a new word."""

    known: Int[Tensor, " K"]
    negative: Int[Tensor, " L"]

    @classmethod
    def of(cls, after: LabelSpace, before: LabelSpace) -> "OldPlaces":
        """The places that the words of `after` had in `before`."""
        places = {word: place for place, word in enumerate((*before.names, *before.negatives))}
        device = after.id_anchors.device
        sides = ([places.get(word, -1) for word in words] for words in (after.names, after.negatives))
        return cls(*(torch.tensor(side, dtype=torch.int64, device=device) for side in sides))


def rows_by_old_place(known: Tensor, negative: Tensor, places: Int[Tensor, " n"], *, fresh: Tensor) -> Tensor:
    """The rows of words by their old places; a new word gets its row of `fresh`."""
    rows = torch.cat([known, negative, known.new_zeros(1, *known.shape[1:])])[places]
    is_new = (places < 0).view(-1, *(1,) * (known.ndim - 1))
    return torch.where(is_new, fresh, rows)
