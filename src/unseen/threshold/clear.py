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
        """Return the sums before the first image."""
        return cls(torch.zeros((), dtype=torch.float64), torch.zeros(NODES, dtype=torch.float64))

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
        at_nodes = counts((margin - MARGIN_PER_CLARITY * clarity)[clear], weight[clear])
        return ClearImages(self.number + clear.sum(), self.at_nodes + at_nodes)

    def log_likelihood(self, log_density: Float[Tensor, "N P B A"]) -> Float[Tensor, "*U B A"]:
        """Return the log-likelihood of each pair of mean margins, of unknown and known images; 0 without clear images.

        Some clear images may be unknown: then their margins have two modes. In some label spaces clarity is off: where
        all margins contradict it clearly, they count for more.
        """
        share = self.at_nodes / self.at_nodes.sum(-1, keepdim=True).clamp(min=1)
        fit = (share @ log_density.flatten(1)).unflatten(-1, log_density.shape[1:])
        usual, odd = (self._log_posterior(fit, deviation) for deviation in (MEAN_DEVIATION, ODD_DEVIATION))
        either = torch.logaddexp(usual + math.log1p(-ODD_SHARE), odd + math.log(ODD_SHARE))
        return torch.where(self.number[..., None, None] > 0, either, 0.0)

    def _log_posterior(self, fit: Float[Tensor, "*U P B A"], deviation: float) -> Float[Tensor, "*U B A"]:
        variance = (deviation**2 + MARGIN_DEVIATION**2 / self.number.clamp(min=1))[..., None, None]
        prior = torch.tensor(list(PURITY.values()), dtype=fit.dtype, device=fit.device).log()[:, None, None]
        worth = MARGIN_DEVIATION**2 / variance  # independent images whose mean deviates as much
        pairs = (worth[..., None, :, :] * fit + prior).logsumexp(-3)
        return pairs - pairs.amax((-2, -1), keepdim=True) - variance.log() / 2


def log_density(unknown_mean: Float[Tensor, " B"], known_mean: Float[Tensor, " A"]) -> Float[Tensor, "N P B A"]:
    """Return the log density of the margins of clear images at a clarity of 0, at each node, for each purity."""
    node = torch.from_numpy(AT_NODES).to(known_mean)[:, None]
    known = _normal(node - known_mean, MARGIN_DEVIATION)[:, None, None, :]
    unknown = _normal(node - unknown_mean - UNKNOWN_ABOVE, MARGIN_DEVIATION)[:, None, :, None]
    purity = torch.tensor(list(PURITY)).to(known_mean)[None, :, None, None]
    return (purity * known + (1 - purity) * unknown + OUTLIER).log()


def _normal(off: Tensor, deviation: float) -> Tensor:
    return torch.exp(-(off / deviation).square() / 2) / (deviation * math.sqrt(2 * math.pi))
