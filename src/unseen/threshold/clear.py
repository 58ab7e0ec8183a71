"""What images that are clearly known say about all known images.

Margins alone cannot tell known images of poor quality from a mix of known and near unknown ones. Clarity can: it is
comparable over images of any quality, and few unknown images are clear. docs/method.md has the figures.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.threshold.nodes import AT_NODES, NODES, counts

CLEAR = 0.12  # clarity from which an image is almost surely known
MARGIN_PER_CLARITY = 17.0  # nats by which the margins of known images grow with their clarity
MARGIN_DEVIATION = 4.0  # of one margin around what its clarity lets expect
UNKNOWN_ABOVE = (
    4.5  # nats by which margins of clear unknown images, at a clarity of 0, exceed those of all unknown ones
)
MEAN_DEVIATION = 1.2  # of the mean margin of known images that clear ones tell, however many: label spaces differ
ODD_SHARE, ODD_DEVIATION = 0.2, 6.0  # label spaces whose clarity is off, and how far that mean then is
PURITY = {0.1: 0.05, 0.3: 0.1, 0.6: 0.15, 0.9: 0.2, 0.99: 0.5}  # share of known images among the clear ones, and prior
OUTLIER = 1e-4  # mass that no mean explains


class ClearImages(NamedTuple):
    """The clear images of a stream, weighted by their place in it. U: several streams, or times."""

    number: Float[Tensor, "*U"]
    at_nodes: Float[Tensor, "*U N"]  # weight at each node of the margins that they would have at a clarity of 0

    @classmethod
    def none(cls) -> ClearImages:
        """The sums before the first image."""
        return cls(torch.zeros((), dtype=torch.float64), torch.zeros(NODES, dtype=torch.float64))

    @classmethod
    def of(cls, margin: Float[Tensor, " n"], clarity: Float[Tensor, " n"], weight: Float[Tensor, " n"]) -> ClearImages:
        """The sums of some images."""
        clear = clarity > CLEAR
        at_zero = torch.where(clear, margin - MARGIN_PER_CLARITY * clarity, 0.0)
        return cls(clear.sum().double(), counts(at_zero, weight * clear))

    def then(self, gained: ClearImages) -> ClearImages:
        """The sums after images that follow."""
        return ClearImages(self.number + gained.number, self.at_nodes + gained.at_nodes)

    def log_likelihood(self, log_density: Float[Tensor, "N P BA"]) -> Float[Tensor, "*U BA"]:
        """The log-likelihood of each pair of mean margins, of unknown and known images; 0 without clear images.

        Some clear images may be unknown: then their margins have two modes. In some label spaces clarity is off: where
        all margins contradict it clearly, they count for more.
        """
        share = self.at_nodes / self.at_nodes.sum(-1, keepdim=True).clamp(min=1)
        fit = (share @ log_density.flatten(1)).unflatten(-1, log_density.shape[1:])
        table = _tables()
        variance = table.variance + MARGIN_DEVIATION**2 / self.number.clamp(min=1)[..., None, None]  # usual, odd
        worth = MARGIN_DEVIATION**2 / variance  # independent images whose mean deviates as much
        # at least OUTLIER to the power of `worth`, which is at most 11: no logarithm is needed before the last
        pairs = ((worth[..., None] * fit.unsqueeze(-3)).exp_() * table.purity).sum(-2)
        pairs *= table.share / (variance.sqrt() * pairs.amax(-1, keepdim=True))
        return torch.where(self.number[..., None] > 0, pairs.sum(-2).log(), 0.0)


class _Tables(NamedTuple):
    """Constants, in the shapes in which they are used."""

    variance: Float[Tensor, "2 1"]  # of the mean that clear images tell, where clarity is as usual and where it is off
    share: Float[Tensor, "2 1"]  # of the label spaces of both kinds
    purity: Float[Tensor, "P 1"]


@cache
def _tables() -> _Tables:
    columns = (MEAN_DEVIATION**2, ODD_DEVIATION**2), (1 - ODD_SHARE, ODD_SHARE), tuple(PURITY.values())
    variance, share, purity = (torch.tensor(one, dtype=torch.float64)[:, None] for one in columns)
    return _Tables(variance, share, purity)


def log_density(unknown_mean: Float[Tensor, " B"], known_mean: Float[Tensor, " A"]) -> Float[Tensor, "N P BA"]:
    """The log density of margins of clear images at a clarity of 0, at each node, by purity and two means."""
    node = torch.from_numpy(AT_NODES).to(known_mean)[:, None]
    known = _normal(node - known_mean, MARGIN_DEVIATION)[:, None, None, :]
    unknown = _normal(node - unknown_mean - UNKNOWN_ABOVE, MARGIN_DEVIATION)[:, None, :, None]
    purity = torch.tensor(list(PURITY)).to(known_mean)[None, :, None, None]
    return (purity * known + (1 - purity) * unknown + OUTLIER).log().flatten(2)


def _normal(off: Tensor, deviation: float) -> Tensor:
    return torch.exp(-(off / deviation).square() / 2) / (deviation * math.sqrt(2 * math.pi))
