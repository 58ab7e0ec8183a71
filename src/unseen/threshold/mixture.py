"""Where known and unknown images lie among unlabelled margins: every way they may lie, weighed by how well it fits.

Unknown images have nothing but chance: the best of many draws, a Gumbel. Known images have the right name besides, and
score the better of the two. How far apart they lie is not known beforehand, so a grid of hypotheses is kept and each
one says where a share of its known images would pass; docs/method.md has the derivation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

STEP = 0.5  # nats between nodes; a margin is shared between the two beside it
LOWEST, HIGHEST = -12.0, 32.0
ENOUGH = 128.0  # images: two modes are a caricature, and no amount of fit makes one exact
RELATED, WIDER = 0.1, 2.0  # a tenth of the unknown images resemble a name: their chance is twice as wide
OUTLIER = 1e-4  # mass that no hypothesis explains, so that one odd margin rules nothing out
SHARES = (0.003, 0.05, 0.25, 0.5, 0.75, 0.95, 0.997)  # of known images
SKEWED = 0.3  # prior that known images, too, lie with a tail to the right: a domain in which names fit now and then


class Prior(NamedTuple):
    """A normal belief about one quantity, or about its logarithm, and the values that are tried."""

    mean: float
    deviation: float
    values: tuple[float, ...]
    of_log: bool = False

    @property
    def log_weights(self) -> Float[Tensor, " n"]:
        """Return the log prior of each value, up to a constant."""
        values, mean = torch.tensor(self.values, dtype=torch.float64), self.mean
        off = (values / mean).log() if self.of_log else values - mean
        return -(off / self.deviation).square() / 2


def _from(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(first + step * i for i in range(count))


def _geometric(first: float, ratio: float, count: int) -> tuple[float, ...]:
    return tuple(first * ratio**i for i in range(count))


CENTRE = Prior(0.0, 1.1, _from(-6, 1, 13))  # mean margin of unknown images: even odds, give or take
SPREAD = Prior(1.3, 0.5, _geometric(0.5, 1.6, 5), of_log=True)  # their deviation
DISTANCE = Prior(2.3, 0.9, _from(0.5, 0.5, 9))  # from there to the mean of known ones, in deviations of those
WIDTH = Prior(3.6, 0.25, _geometric(1.8, 1.25, 7), of_log=True)  # deviation of known images


class Modes(NamedTuple):
    """Every way in which unknown and known images may lie."""

    centre: Float[Tensor, " M"]
    spread: Float[Tensor, " M"]
    mean: Float[Tensor, " M"]
    width: Float[Tensor, " M"]
    is_skewed: Float[Tensor, " M"]
    log_prior: Float[Tensor, " M"]

    def unknown_below(self, x: Float[Tensor, "n M"]) -> Float[Tensor, "n M"]:
        """Return the share of unknown images below each x: chance, and for some of them a wider one."""
        location = self.centre - EULER * scale(self.spread)
        wide = gumbel(x, location, WIDER * scale(self.spread))
        return (1 - RELATED) * gumbel(x, location, scale(self.spread)) + RELATED * wide

    def known_below(self, x: Float[Tensor, "n M"]) -> Float[Tensor, "n M"]:
        """Return the share of known images below each x: where both the right name and chance are."""
        chance = gumbel(x, self.centre - EULER * scale(self.spread), scale(self.spread))
        skewed = gumbel(x, self.mean - EULER * scale(self.width), scale(self.width))
        plain = torch.special.ndtr((x - self.mean) / self.width)
        return chance * torch.where(self.is_skewed > 0, skewed, plain)


EULER = 0.5772156649015329  # mean of a standard Gumbel


def scale(deviation: Tensor) -> Tensor:
    """Return the scale of a Gumbel with this standard deviation."""
    return deviation * math.sqrt(6) / math.pi


def gumbel(x: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Return the share of a Gumbel below x."""
    return torch.exp(-torch.exp(-(x - location) / scale))


@cache
def modes() -> Modes:
    """Return the grid of modes."""
    priors = (CENTRE, SPREAD, DISTANCE, WIDTH)
    values = [torch.tensor(prior.values, dtype=torch.float64) for prior in priors]
    skewed = torch.tensor([0.0, 1.0], dtype=torch.float64)
    centre, spread, distance, width, is_skewed = (
        part.reshape(-1) for part in torch.meshgrid(*values, skewed, indexing="ij")
    )
    weights = [*(prior.log_weights for prior in priors), torch.tensor([1 - SKEWED, SKEWED], dtype=torch.float64).log()]
    log_prior = sum(part.reshape(-1) for part in torch.meshgrid(*weights, indexing="ij"))
    assert isinstance(log_prior, Tensor)
    return Modes(centre, spread, centre + distance * width, width, is_skewed, log_prior)


@cache
def log_density() -> Float[Tensor, "N MS"]:
    """Return the log probability of the cell around each node under every modes and share of known images."""
    edges = torch.arange(LOWEST - STEP / 2, HIGHEST + STEP, STEP, dtype=torch.float64)
    edges[0], edges[-1] = -torch.inf, torch.inf
    known, unknown = (below(edges.unsqueeze(1)).diff(dim=0) for below in (modes().known_below, modes().unknown_below))
    floor = OUTLIER / len(known)
    mixed = torch.stack([(share * known + (1 - share) * unknown + floor).log().float() for share in SHARES], dim=2)
    return mixed.flatten(1)


@cache
def quantiles(recall: float) -> Float[Tensor, " M"]:
    """Return the margin that a share `recall` of the known images passes under each modes, by bisection."""
    low, high = torch.full_like(modes().mean, 2 * LOWEST), torch.full_like(modes().mean, 2 * HIGHEST)
    for _ in range(40):
        middle = (low + high) / 2
        is_below = modes().known_below(middle.unsqueeze(0)).squeeze(0) < 1 - recall
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return low


def counts(margins: Float[Tensor, " n"]) -> Float[Tensor, " N"]:
    """Return how many margins lie at each node, each shared linearly between its two neighbours.

    Shared rather than rounded, so that a rounding error moves the line by as little.
    """
    place = ((margins.double().clamp(LOWEST, HIGHEST) - LOWEST) / STEP).clamp(
        max=round((HIGHEST - LOWEST) / STEP) - 1e-9
    )
    left = place.long()
    nodes = torch.zeros(round((HIGHEST - LOWEST) / STEP) + 1, dtype=torch.float64)
    nodes.index_add_(0, left, 1 - (place - left))
    return nodes.index_add_(0, left + 1, place - left)


def posterior(margins: Float[Tensor, " n"]) -> Float[Tensor, "M S"]:
    """Return the probability of each modes and share of known images, after `margins`."""
    at_nodes = (counts(margins) * (ENOUGH / (ENOUGH + len(margins)))).float()
    fit = (at_nodes @ log_density()).reshape(-1, len(SHARES)).double()
    return (modes().log_prior.unsqueeze(1) + fit).flatten().softmax(0).reshape(fit.shape)


def known_line(margins: Float[Tensor, " n"], recall: float) -> Float[Tensor, ""]:
    """Return the margin that a share `recall` of the known images should pass: the mean over all hypotheses."""
    return posterior(margins).sum(1) @ quantiles(recall)
