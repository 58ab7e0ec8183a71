"""Energy of shaped features: ReAct, ASH, SCALE.

They were made for features after a ReLU. CLIP's have both signs, so that what they rank and sum here are magnitudes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import setting
from unseen.odds import energy
from unseen_bench.methods.posthoc.base import PostHoc


@dataclass(frozen=True, eq=False)
class ReAct(PostHoc):
    """Clip magnitudes at a quantile of those of the ID images, then take the energy (NeurIPS 2021)."""

    quantile: float = setting(0.9, 0, 1, low_open=True)

    name: ClassVar[str] = "fit-react"

    @cached_property
    def limit(self) -> float:
        """The magnitude at which to clip."""
        magnitude = self.images.z.abs().flatten().sort().values
        return float(magnitude[int(self.quantile * (len(magnitude) - 1))])

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return energy(self.images.logits(z.clamp(-self.limit, self.limit)))


@dataclass(frozen=True, eq=False)
class ASH(PostHoc):
    """Drop the smallest magnitudes, scale up what is left, then take the energy (ICLR 2023, variant S)."""

    dropped: float = setting(0.9, 0, 0.99)  # as published for ImageNet

    name: ClassVar[str] = "fit-ash"

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        kept = largest(z, 1 - self.dropped)
        return energy(self.images.logits(kept * ratio(z, kept).exp()))


@dataclass(frozen=True, eq=False)
class SCALE(ASH):
    """Scale whole features by how much of them the largest magnitudes hold, then take the energy (ICLR 2024)."""

    dropped: float = setting(0.85, 0, 0.99)

    name: ClassVar[str] = "fit-scale"

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return energy(self.images.logits(z * ratio(z, largest(z, 1 - self.dropped)).exp()))


def largest(z: Float[Tensor, "T d"], share: float) -> Float[Tensor, "T d"]:
    """The features with all but a share of the largest magnitudes set to zero."""
    magnitude = z.abs()
    count = max(1, round(share * z.shape[1]))
    return z * (magnitude >= magnitude.topk(count, dim=1).values[:, -1:])


def ratio(z: Float[Tensor, "T d"], kept: Float[Tensor, "T d"]) -> Float[Tensor, "T 1"]:
    """The sum of all magnitudes over the sum of those kept."""
    return z.abs().sum(dim=1, keepdim=True) / kept.abs().sum(dim=1, keepdim=True)
