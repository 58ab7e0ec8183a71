"""What images that are clearly known say about all known images.

Margins alone cannot tell known images of poor quality from a mix of known and near unknown ones. Clarity can: it is
comparable over images of any quality, and few unknown images are clear. docs/method.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

CLEAR = 0.12  # clarity from which an image is almost surely known
MARGIN_PER_CLARITY = 17.0  # nats by which the margins of known images grow with their clarity
MEAN_DEVIATION = 1.2  # of the estimated mean margin of known images, however many are clear: label spaces differ
MARGIN_DEVIATION = 4.0  # of one margin around what its clarity lets expect
ODD_SHARE, ODD_DEVIATION = 0.2, 6.0  # label spaces whose clarity is off, and how far the estimated mean then is


class ClearImages(NamedTuple):
    """Sums over the clear images; an image is weighted by its place in the stream. U: several streams, or times."""

    clear: Float[Tensor, "*U"]  # number of clear images
    weight: Float[Tensor, "*U"]  # of the clear images
    at_zero: Float[Tensor, "*U"]  # weighted sum of the margins that clear images would have at a clarity of 0

    @classmethod
    def none(cls) -> ClearImages:
        """Return the sums before the first image."""
        return cls(*(torch.zeros((), dtype=torch.float64) for _ in range(3)))

    @classmethod
    def stacked(cls, some: Sequence[ClearImages]) -> ClearImages:
        """Return several sums as one, with a dimension in front."""
        return cls(*(torch.stack(parts) for parts in zip(*some, strict=True)))

    def to(self, device: torch.device) -> ClearImages:
        """Return the sums on a device."""
        return ClearImages(*(part.to(device) for part in self))

    def after(
        self, margin: Float[Tensor, " n"], clarity: Float[Tensor, " n"], weight: Float[Tensor, " n"]
    ) -> ClearImages:
        """Return the sums after some images."""
        clear = clarity > CLEAR
        if not bool(clear.any()):
            return self
        at_zero = (weight * (margin - MARGIN_PER_CLARITY * clarity))[clear].sum()
        gained = clear.sum(), weight[clear].sum(), at_zero
        return ClearImages(*(total + more for total, more in zip(self, gained, strict=True)))

    def log_likelihood_of_mean(self, mean: Float[Tensor, " H"]) -> Float[Tensor, "*U H"]:
        """Return the log-likelihood of each mean margin of the known images; 0 without clear images.

        In some label spaces clarity is off: where the margins contradict it clearly, they count for more.
        """
        off = mean - (self.at_zero / self.weight.clamp(min=1)).unsqueeze(-1)
        usual, odd = (self._log_normal(off, deviation) for deviation in (MEAN_DEVIATION, ODD_DEVIATION))
        either = torch.logaddexp(usual + math.log1p(-ODD_SHARE), odd + math.log(ODD_SHARE))
        return torch.where(self.clear.unsqueeze(-1) > 0, either, 0.0)

    def _log_normal(self, off: Float[Tensor, "*U H"], deviation: float) -> Float[Tensor, "*U H"]:
        variance = (deviation**2 + MARGIN_DEVIATION**2 / self.clear.clamp(min=1)).unsqueeze(-1)
        return -off.square() / (2 * variance) - variance.log() / 2
