"""Where known and unknown images lie among unlabelled margins: a posterior over a grid of two-part mixtures.

An unknown image has only chance matches: its margin is the best of many draws, a Gumbel. A known image also has the
right name, and its margin is the larger of the two. The distances between them are not known beforehand, so every
mixture of a grid (a hypothesis) is weighted by its fit; docs/method.md has the derivation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

STEP = 0.5  # nats between nodes; a margin is divided between the two beside it
LOWEST, HIGHEST = -12.0, 32.0
EFFECTIVE_SAMPLES = 128.0  # limit of the weight of the data: the mixtures only approximate real margins
RELATED_SHARE, RELATED_WIDTH = 0.1, 2.0  # a tenth of the unknown images resemble a name: their chance is twice as wide
OUTLIER = 1e-4  # mass that no hypothesis explains, so that one odd margin rules nothing out
KNOWN_SHARES = (0.003, 0.05, 0.25, 0.5, 0.75, 0.95, 0.997)  # of the stream
SKEWED = 0.3  # prior that margins of known images have a tail to the right, as where names fit only some images
EULER = 0.5772156649015329  # mean of a standard Gumbel


class Prior(NamedTuple):
    """A normal prior on one quantity, or on its logarithm, and the values that are tried."""

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


def _linear(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(first + step * i for i in range(count))


def _geometric(first: float, ratio: float, count: int) -> tuple[float, ...]:
    return tuple(first * ratio**i for i in range(count))


UNKNOWN_MEAN = Prior(0.0, 1.1, _linear(-6, 1, 13))
UNKNOWN_DEVIATION = Prior(1.3, 0.5, _geometric(0.5, 1.6, 5), of_log=True)
DISTANCE = Prior(2.3, 0.9, _linear(0.5, 0.5, 9))  # between the two means, in deviations of known images
KNOWN_DEVIATION = Prior(3.6, 0.25, _geometric(1.8, 1.25, 7), of_log=True)


class Hypotheses(NamedTuple):
    """Every pair of distributions that is tried."""

    unknown_mean: Float[Tensor, " H"]
    unknown_deviation: Float[Tensor, " H"]
    known_mean: Float[Tensor, " H"]
    known_deviation: Float[Tensor, " H"]
    is_skewed: Bool[Tensor, " H"]  # whether margins of known images have a tail to the right
    log_prior: Float[Tensor, " H"]

    def unknown_below(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """Return the share of unknown images below each x."""
        location = self.unknown_mean - EULER * gumbel_scale(self.unknown_deviation)
        related = gumbel_cdf(x, location, RELATED_WIDTH * gumbel_scale(self.unknown_deviation))
        unrelated = gumbel_cdf(x, location, gumbel_scale(self.unknown_deviation))
        return (1 - RELATED_SHARE) * unrelated + RELATED_SHARE * related

    def known_below(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """Return the share of known images below each x: both the right name and the chance matches are below."""
        chance = gumbel_of(x, self.unknown_mean, self.unknown_deviation)
        skewed = gumbel_of(x, self.known_mean, self.known_deviation)
        normal = torch.special.ndtr((x - self.known_mean) / self.known_deviation)
        return chance * torch.where(self.is_skewed, skewed, normal)


def gumbel_scale(deviation: Tensor) -> Tensor:
    """Return the scale of a Gumbel with this standard deviation."""
    return deviation * math.sqrt(6) / math.pi


def gumbel_cdf(x: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Return the share of a Gumbel below x."""
    return torch.exp(-torch.exp(-(x - location) / scale))


def gumbel_of(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the share of a Gumbel with this mean and standard deviation below x."""
    scale = gumbel_scale(deviation)
    return gumbel_cdf(x, mean - EULER * scale, scale)


@cache
def hypotheses() -> Hypotheses:
    """Return the grid of hypotheses."""
    priors = (UNKNOWN_MEAN, UNKNOWN_DEVIATION, DISTANCE, KNOWN_DEVIATION)
    values = [torch.tensor(prior.values, dtype=torch.float64) for prior in priors]
    unknown_mean, unknown_deviation, distance, known_deviation, skewed = (
        part.reshape(-1) for part in torch.meshgrid(*values, torch.tensor([0.0, 1.0]).double(), indexing="ij")
    )
    weights = [*(prior.log_weights for prior in priors), torch.tensor([1 - SKEWED, SKEWED], dtype=torch.float64).log()]
    log_prior = torch.stack([part.reshape(-1) for part in torch.meshgrid(*weights, indexing="ij")]).sum(0)
    known_mean = unknown_mean + distance * known_deviation
    return Hypotheses(unknown_mean, unknown_deviation, known_mean, known_deviation, skewed > 0, log_prior)


@cache
def log_density() -> Float[Tensor, "N HS"]:
    """Return the log probability of the cell around each node under every hypothesis and share of known images."""
    edges = torch.arange(LOWEST - STEP / 2, HIGHEST + STEP, STEP, dtype=torch.float64)
    edges[0], edges[-1] = -torch.inf, torch.inf
    grid = hypotheses()
    known, unknown = (below(edges.unsqueeze(1)).diff(dim=0) for below in (grid.known_below, grid.unknown_below))
    floor = OUTLIER / len(known)
    mixed = [(share * known + (1 - share) * unknown + floor).log().float() for share in KNOWN_SHARES]
    return torch.stack(mixed, dim=2).flatten(1)


@cache
def quantiles(recall: float) -> Float[Tensor, " H"]:
    """Return the margin that a share `recall` of the known images reaches under each hypothesis, by bisection."""
    grid = hypotheses()
    low, high = torch.full_like(grid.known_mean, 2 * LOWEST), torch.full_like(grid.known_mean, 2 * HIGHEST)
    for _ in range(40):
        middle = (low + high) / 2
        is_below = grid.known_below(middle.unsqueeze(0)).squeeze(0) < 1 - recall
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return low


def counts(margins: Float[Tensor, " n"]) -> Float[Tensor, " N"]:
    """Return how many margins lie at each node, each divided linearly between its two neighbours.

    Divided, not rounded to one of them, so that a rounding error moves the threshold by as little.
    """
    last = round((HIGHEST - LOWEST) / STEP)
    place = ((margins.double().clamp(LOWEST, HIGHEST) - LOWEST) / STEP).clamp(max=last - 1e-9)
    left = place.long()
    nodes = torch.zeros(last + 1, dtype=torch.float64)
    nodes.index_add_(0, left, 1 - (place - left))
    return nodes.index_add_(0, left + 1, place - left)


def posterior(margins: Float[Tensor, " n"]) -> Float[Tensor, "H S"]:
    """Return the probability of each hypothesis and share of known images, after `margins`."""
    at_nodes = (counts(margins) * (EFFECTIVE_SAMPLES / (EFFECTIVE_SAMPLES + len(margins)))).float()
    fit = (at_nodes @ log_density()).reshape(-1, len(KNOWN_SHARES)).double()
    return (hypotheses().log_prior.unsqueeze(1) + fit).flatten().softmax(0).reshape(fit.shape)


def recall_threshold(margins: Float[Tensor, " n"], recall: float) -> Float[Tensor, ""]:
    """Return the margin that a share `recall` of the known images should reach: the mean over all hypotheses."""
    return posterior(margins).sum(1) @ quantiles(recall)
