"""Samples in arrival order with the truth about them; only `evaluate` reads the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen import arrival as arrivals


@dataclass(frozen=True)
class Trial:
    """Samples in arrival order with the truth about them. Features go to the detector, the rest stays here."""

    z: Float[Tensor, "T d"]
    label: Int[Tensor, " T"]  # index of the true known name, -1 for a sample that has none
    source: Int[Tensor, " T"]  # index into `sources`: where the sample comes from
    sources: tuple[str, ...]

    @property
    def is_id(self) -> Bool[Tensor, " T"]:
        """Return which samples belong to a known name."""
        return self.label >= 0

    def arrival(self, kind: str, seed: int, **options: object) -> Int[Tensor, " S"]:
        """Return the indices of the samples in the arrival order named `kind` (see arrival.ORDERS)."""
        # a long tail is over known classes, a temporal shift over unknown sets
        source = torch.where(self.is_id, self.label, self.source)
        return arrivals.order(self.is_id, source, kind=kind, seed=seed, **options)

    def ordered(self, kind: str, seed: int, **options: object) -> Trial:
        """Return the trial in the arrival order named `kind`."""
        return self[self.arrival(kind, seed, **options)]

    def held_out(self) -> tuple[Trial, Trial]:
        """Return the first half of each known class, to fit what needs ID images, and all the rest."""
        kept = torch.ones(len(self.z), dtype=torch.bool)
        for label in self.label[self.is_id].unique():
            members = (self.label == label).nonzero().squeeze(1)
            kept[members[: len(members) // 2]] = False
        return self[(~kept).nonzero().squeeze(1)], self[kept.nonzero().squeeze(1)]

    def __getitem__(self, order: Int[Tensor, " S"]) -> Trial:
        return Trial(self.z[order], self.label[order], self.source[order], self.sources)
