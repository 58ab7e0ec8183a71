"""Samples in arrival order with the truth about them; only `evaluate` reads the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen_bench import orders as arrivals


@dataclass(frozen=True)
class Trial:
    """Samples in arrival order with the truth about them. Features go to the detector, the rest stays here."""

    z: Float[Tensor, "T d"]
    label: Int[Tensor, " T"]  # index of the true known name, -1 for a sample that has none
    source: Int[Tensor, " T"]  # index into `sources`: where the sample comes from
    sources: tuple[str, ...]
    stages: Int[Tensor, " T"] | None = None  # of a temporal order, None in all others

    @property
    def is_id(self) -> Bool[Tensor, " T"]:
        """Which samples belong to a known name."""
        return self.label >= 0

    @property
    def stage(self) -> Int[Tensor, " T"]:
        """The stage of a temporal order to which each sample belongs, 0 in all others."""
        return torch.zeros_like(self.label) if self.stages is None else self.stages

    def arrival(self, kind: str, seed: int, **options: object) -> Int[Tensor, " S"]:
        """The indices of the samples in the arrival order named `kind` (see arrival.ORDERS)."""
        return arrivals.order(self.is_id, self._class_or_set, kind=kind, seed=seed, **options)

    @property
    def _class_or_set(self) -> Int[Tensor, " T"]:
        # a long tail is over known classes, a temporal shift over unknown sets
        return torch.where(self.is_id, self.label, self.source)

    def ordered(self, kind: str, seed: int, **options: object) -> Trial:
        """The trial in the arrival order named `kind`."""
        return self[self.arrival(kind, seed, **options)]

    def held_out(self) -> tuple[Trial, Trial]:
        """The first half of each known class, to fit what needs ID images, and all the rest."""
        kept = torch.ones(len(self.z), dtype=torch.bool)
        for label in self.label[self.is_id].unique():
            members = (self.label == label).nonzero().squeeze(1)
            kept[members[: len(members) // 2]] = False
        return self[(~kept).nonzero().squeeze(1)], self[kept.nonzero().squeeze(1)]

    def __getitem__(self, order: Int[Tensor, " S"]) -> Trial:
        stage = self.stage[order] + arrivals.stages(self.is_id, self._class_or_set, order)
        return Trial(self.z[order], self.label[order], self.source[order], self.sources, stage)
