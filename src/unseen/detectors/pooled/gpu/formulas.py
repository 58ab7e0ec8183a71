"""What kernels take of the formulas of a detector, and the kernel of the frozen text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import GPU_BLOCK
from unseen.detectors.pooled.evidence import Contrast, LogitMoments, LogOdds, RowMoments, Surprise, unrelated_moments
from unseen.detectors.pooled.formulas import Formulas
from unseen.detectors.pooled.names import TOP, NearestNames, TopNames
from unseen.detectors.state import map_state
from unseen.gpu import triton_import
from unseen.gpu.triton_import import power_of_two
from unseen.text import text_logits

GROUPS = 1024  # columns of logits that one program holds
TERM_KINDS = LogOdds, Contrast, Surprise


class FrozenSamples(NamedTuple):
    """Samples with their nearest names and the moments of their logits: what follows from the frozen text."""

    z: Float[Tensor, "n d"]
    nearest: NearestNames
    statistics: Float[Tensor, "n 8"]  # of both sides: mean, variance, largest and logsumexp of the logits

    def moments(self, names: int) -> LogitMoments:
        """The moments from which baselines follow."""
        known_mean, known_variance, peak, _, mean, variance, _, _ = self.statistics.unbind(1)
        return unrelated_moments(RowMoments(known_mean, known_variance), RowMoments(mean, variance), peak, names)


@dataclass(frozen=True)
class KernelFormulas(Formulas):
    """The formulas of a detector as kernels take them."""

    @classmethod
    def of(cls, formulas: Formulas) -> KernelFormulas:
        """The formulas of a detector."""
        return cls(**vars(formulas))

    @cached_property
    def are_known(self) -> bool:
        """Whether kernels can be compiled here, and know the terms of the evidence and what examples change."""
        kinds = {type(term) for term in self.terms}
        return triton_import.IS_INSTALLED and self.labels.examples is None and kinds <= set(TERM_KINDS)

    @cached_property
    def settings(self) -> Float[Tensor, " 10"]:
        """The numbers that the kernel `judge` takes."""
        typical, options = self.statistics.typical_peak, (self.tau, self.popularity, self.naming_popularity)
        weights = (
            sum(getattr(term, "weight", 1.0) for term in self.terms if type(term) is kind) for kind in TERM_KINDS
        )
        offset = 1.0 if math.isfinite(typical) else math.inf
        numbers = *options, self.statistics.unit, self.statistics.gap_shrinkage, typical, offset, *weights
        return torch.tensor(numbers, dtype=torch.float64, device=self.labels.id_anchors.device)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of known and of negative names."""
        return len(self.labels.names), len(self.labels.negatives)

    @property
    def tops(self) -> tuple[int, int]:
        """How many of the nearest names of each side count."""
        known, negatives = (min(TOP, size) for size in self.sizes)
        return known, negatives

    @property
    def packed_width(self) -> int:
        """The numbers of a sample as `state.packed` has it."""
        return self.labels.dim + 2 + 2 * sum(self.tops)

    def room(self, rows: int) -> FrozenSamples:
        """Room for samples."""
        empty = self.labels.id_anchors.new_empty
        names = (TopNames(empty((rows, top), dtype=torch.int64), empty((rows, top))) for top in self.tops)
        return FrozenSamples(empty((rows, self.labels.dim)), NearestNames(*names), empty((rows, 8)))

    def frozen_samples(self, z: Float[Tensor, "n d"]) -> FrozenSamples:
        """Unit features with their nearest names and the moments of their logits."""
        parts = [self._frozen_block(part) for part in z.split(GPU_BLOCK)]
        return parts[0] if len(parts) == 1 else map_state(lambda *some: torch.cat(some), *parts)

    def _frozen_block(self, z: Float[Tensor, "n d"]) -> FrozenSamples:
        from unseen.detectors.pooled.gpu.kernels import frozen as kernels

        text, samples = text_logits(self.labels, z, tau=self.tau), self.room(len(z))._replace(z=z)
        groups = [min(GROUPS, power_of_two(size)) for size in self.sizes]
        members = [power_of_two(-(-size // group)) for size, group in zip(self.sizes, groups, strict=True)]
        kernels.frozen[(len(z), 2)](
            *text, *samples.nearest.known, *samples.nearest.negative, samples.statistics,
            *self.sizes, *self.tops, *groups, *members, num_warps=4,
        )  # fmt: skip
        return samples
