"""Samples in arrival order with the truth about them; only `evaluate` looks at the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen import stream


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

    def order(self, kind: str, seed: int, **options: object) -> Int[Tensor, " S"]:
        """Return the arrival order named `kind` (see stream.ORDERS) as places in this trial."""
        # a long tail is over known classes, a temporal shift over unknown sets
        source = torch.where(self.is_id, self.label, self.source)
        return stream.order(self.is_id, source, kind=kind, seed=seed, **options)

    def ordered(self, kind: str, seed: int, **options: object) -> Trial:
        """Return the trial in the arrival order named `kind`."""
        return self[self.order(kind, seed, **options)]

    def __getitem__(self, order: Int[Tensor, " S"]) -> Trial:
        return Trial(self.z[order], self.label[order], self.source[order], self.sources)
