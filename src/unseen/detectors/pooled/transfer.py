"""Move a state to another label space: what was learned of a name or a negative goes where that word has gone."""

from __future__ import annotations

import torch

from unseen.detectors.pooled.names import NameSums
from unseen.detectors.pooled.state import Sums
from unseen.detectors.transfer import OldPlaces, rows_by_old_place
from unseen.labels import LabelSpace


def carried_sums(sums: Sums, before: LabelSpace, after: LabelSpace) -> Sums:
    """The sums by the words of another label space; a new word has claimed no image and won no vote."""
    places, fresh = OldPlaces.of(after, before), Sums.empty(after)
    no_votes = torch.zeros_like(sums.negative.images, dtype=sums.votes.dtype)
    known, negative = (
        NameSums(
            rows_by_old_place(sums.known.images, sums.negative.images, side, fresh=start.images),
            rows_by_old_place(sums.known.total, sums.negative.total, side, fresh=start.total),
        )
        for side, start in zip(places, (fresh.known, fresh.negative), strict=True)
    )
    votes = rows_by_old_place(sums.votes, no_votes, places.known, fresh=fresh.votes.to(sums.votes.device))
    return sums._replace(known=known, negative=negative, votes=votes)
