"""Energy of shaped features: ReAct, ASH, SCALE.

They were made for features after a ReLU. CLIP's have both signs, so that what they rank and sum here are magnitudes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import in_range
from unseen.detectors.posthoc.base import PostHoc
from unseen.odds import energy


@dataclass(frozen=True, eq=False)
class ReAct(PostHoc):
    """Clip magnitudes at a quantile of those of the ID images, then take the energy (NeurIPS 2021)."""

    quantile: float = 0.9

    name: ClassVar[str] = "fit-react"

    def __post_init__(self) -> None:
        """Check the quantile."""
        super().__post_init__()
        in_range("quantile", self.quantile, 0, 1, low_open=True)

    @cached_property
    def limit(self) -> float:
        """Return the magnitude at which to clip."""
        magnitude = self.images.z.abs().flatten().sort().values
        return float(magnitude[int(self.quantile * (len(magnitude) - 1))])

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """Return the energy of the clipped features."""
        return energy(self.images.logits(z.clamp(-self.limit, self.limit)))


@dataclass(frozen=True, eq=False)
class ASH(PostHoc):
    """Drop the smallest magnitudes, scale up what is left, then take the energy (ICLR 2023, variant S)."""

    dropped: float = 0.9  # as published for ImageNet

    name: ClassVar[str] = "fit-ash"

    def __post_init__(self) -> None:
        """Check the share."""
        super().__post_init__()
        in_range("dropped", self.dropped, 0, 0.99)

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """Return the energy of the pruned and scaled features."""
        kept = largest(z, 1 - self.dropped)
        return energy(self.images.logits(kept * ratio(z, kept).exp()))


@dataclass(frozen=True, eq=False)
class SCALE(ASH):
    """Scale whole features by how much of them the largest magnitudes hold, then take the energy (ICLR 2024)."""

    dropped: float = 0.85

    name: ClassVar[str] = "fit-scale"

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """Return the energy of the scaled features."""
        return energy(self.images.logits(z * ratio(z, largest(z, 1 - self.dropped)).exp()))


def largest(z: Float[Tensor, "T d"], share: float) -> Float[Tensor, "T d"]:
    """Return the features with all but a share of the largest magnitudes set to zero."""
    magnitude = z.abs()
    count = max(1, round(share * z.shape[1]))
    return z * (magnitude >= magnitude.topk(count, dim=1).values[:, -1:])


def ratio(z: Float[Tensor, "T d"], kept: Float[Tensor, "T d"]) -> Float[Tensor, "T 1"]:
    """Return the sum of all magnitudes over the sum of those kept."""
    return z.abs().sum(dim=1, keepdim=True) / kept.abs().sum(dim=1, keepdim=True)
