"""Where known and unknown images lie among unlabelled margins: a posterior over a grid of two-part mixtures.

The deviation of the margins of known images differs little between streams; their mean, and mean and deviation of the
unknown, differ much. Every mixture of a grid (a hypothesis) is weighted by its fit to the margins and to what clear
images say; docs/method.md has the figures.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.threshold.clear import ClearImages
from unseen.threshold.clear import log_density as log_density_of_clear
from unseen.threshold.correction import OUTLIER, corrected, probability_now
from unseen.threshold.nodes import HIGHEST, LOWEST, NODES, STEP

EFFECTIVE_SAMPLES = 64.0  # limit of the weight of the data: the mixtures only approximate real margins
KNOWN_SHARES = (0.003, 0.05, 0.25, 0.5, 0.75, 0.95, 0.997)  # of the stream
NORMAL, RIGHT, LEFT = range(3)  # shapes of the margins of known images: none, or the side of their tail
RIGHT_BELOW, LEFT_ABOVE, SHAPE_WIDTH = 9.0, 12.0, 2.0  # mean margins of known images that make a tail likely
LEFT_SHARE = 0.3  # of the streams with high margins: a tail to the left grows where the same images come again
LEFT_DEVIATION = 1.3  # deviation of margins with a tail to the left, in deviations of the others
RARE = 0.02  # a shape that is less likely than this at some mean is not tried there
LEAST_PROBABILITY = 0.1  # an image that is known with less than this is called unknown, whatever recall is wanted
TELLING = 32.0  # clear images after which that rule counts half where it loses more than twice as many as wanted
# Streams differ more than hypotheses do: what 95 % of their weight says of the recall holds in nine streams of ten.
INTERVAL_TAILS = (0.025, 0.975)
EULER = 0.5772156649015329  # mean of a standard Gumbel


class Prior(NamedTuple):
    """A normal prior on one quantity, or on its logarithm, and the values that are tried."""

    mean: float
    deviation: float
    values: tuple[float, ...]
    of_log: bool = False

    @property
    def log_weights(self) -> Float[Tensor, " n"]:
        """The log prior of each value, up to a constant."""
        values, mean = torch.tensor(self.values, dtype=torch.float64), self.mean
        off = (values / mean).log() if self.of_log else values - mean
        return -(off / self.deviation).square() / 2


def _linear(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(first + step * i for i in range(count))


UNKNOWN_MEAN = Prior(-2.0, 2.5, _linear(-20, 2, 11))
UNKNOWN_DEVIATION = Prior(3.6, 0.35, (1.5, 2.5, 4.0, 6.0), of_log=True)
KNOWN_MEAN = Prior(9.0, 4.0, _linear(2, 1.5, 17))
KNOWN_DEVIATION = Prior(5.8, 0.15, (4.65, 5.7, 6.85), of_log=True)  # at the mean of KNOWN_MEAN
DEVIATION_GROWTH = 0.01  # of the logarithm of that deviation, with each nat of the mean
UNKNOWN = len(UNKNOWN_MEAN.values) * len(UNKNOWN_DEVIATION.values)  # distributions of unknown images


class Hypotheses(NamedTuple):
    """Every pair of distributions that is tried."""

    unknown_mean: Float[Tensor, " H"]
    unknown_deviation: Float[Tensor, " H"]
    known_mean: Float[Tensor, " H"]
    known_deviation: Float[Tensor, " H"]
    shape: Int[Tensor, " H"]  # of the margins of known images
    log_prior: Float[Tensor, " H"]

    def unknown_below(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """The share of unknown images below each x: the best of many chance matches, a Gumbel."""
        return gumbel_of(x, self.unknown_mean, self.unknown_deviation)

    def known_below(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """The share of known images below each x."""
        mean, deviation = self.known_mean, self.known_deviation
        tailed = torch.where(self.shape == RIGHT, gumbel_of(x, mean, deviation), 1 - gumbel_of(-x, -mean, deviation))
        return torch.where(self.shape == NORMAL, torch.special.ndtr((x - mean) / deviation), tailed)


class Sides(NamedTuple):
    """The A distributions of known images and the B of unknown ones that are tried."""

    known: Float[Tensor, "N A"]  # probability of each cell
    unknown: Float[Tensor, "N B"]
    known_mean: Float[Tensor, " A"]


class ExpectedMixture(NamedTuple):
    """The mean over all hypotheses, each weighted by its posterior."""

    known: Float[Tensor, "*U N"]  # probability of each cell
    unknown: Float[Tensor, "*U N"]
    weight: Float[Tensor, "*U A"]  # of each distribution of known images


class MixtureFit(NamedTuple):
    """What follows from margins."""

    threshold: Float[Tensor, "*U"]
    probability: Float[Tensor, "*U N"]  # that an image at each node is known
    recall: Float[Tensor, "*U 2"]  # the lowest and the highest share of known images that the threshold may keep


def gumbel_of(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """The share of a Gumbel with this mean and standard deviation below x."""
    scale = deviation * math.sqrt(6) / math.pi
    return torch.exp(-torch.exp(-(x - mean) / scale - EULER))


def shape_prior(mean: Float[Tensor, " H"]) -> Float[Tensor, "3 H"]:
    """The probability of each shape, given the mean margin of known images."""
    right = torch.sigmoid((RIGHT_BELOW - mean) / SHAPE_WIDTH)
    left = LEFT_SHARE * torch.sigmoid((mean - LEFT_ABOVE) / SHAPE_WIDTH) * (1 - right)
    return torch.stack([1 - right - left, right, left])


@cache
def hypotheses() -> Hypotheses:
    """The grid of hypotheses: for each distribution of unknown images all those of known ones."""
    priors = (UNKNOWN_MEAN, UNKNOWN_DEVIATION, KNOWN_MEAN, KNOWN_DEVIATION)
    values = [torch.tensor(prior.values, dtype=torch.float64) for prior in priors]
    unknown_mean, unknown_deviation, known_mean, known_deviation = _every_choice(values)
    log_prior = torch.stack(_every_choice([prior.log_weights for prior in priors])).sum(0)
    known_deviation = known_deviation * torch.exp(DEVIATION_GROWTH * (known_mean - KNOWN_MEAN.mean))
    of_shape = shape_prior(known_mean)
    row, shape = (of_shape.T > RARE).nonzero(as_tuple=True)
    deviation = torch.where(shape == LEFT, LEFT_DEVIATION * known_deviation[row], known_deviation[row])
    return Hypotheses(
        unknown_mean[row],
        unknown_deviation[row],
        known_mean[row],
        deviation,
        shape,
        log_prior[row] + of_shape[shape, row].log(),
    )


def _every_choice(values: Sequence[Float[Tensor, " n"]]) -> list[Float[Tensor, " H"]]:
    """Every choice of one value of each, a column for each."""
    return [part.reshape(-1) for part in torch.meshgrid(*values, indexing="ij")]


@cache
def sides() -> Sides:
    """The distributions of known and of unknown images by themselves: a hypothesis is a pair of them."""
    edges = torch.arange(LOWEST - STEP / 2, HIGHEST + STEP, STEP, dtype=torch.float64)
    edges[0], edges[-1] = -torch.inf, torch.inf
    grid, edges = hypotheses(), edges.unsqueeze(1)
    count = len(grid.shape) // UNKNOWN
    known, unknown = Hypotheses(*(part[:count] for part in grid)), Hypotheses(*(part[::count] for part in grid))
    return Sides(known.known_below(edges).diff(dim=0), unknown.unknown_below(edges).diff(dim=0), known.known_mean)


@cache
def log_density() -> Float[Tensor, "N SH"]:
    """The log probability of every cell under every share of known images and hypothesis, less the largest.

    What is the same for all of them changes no posterior; small numbers lose less to rounding in their sum.
    """
    known, unknown, _ = sides()
    share = torch.tensor(KNOWN_SHARES, dtype=torch.float64)[:, None, None, None]
    mixed = share * known.T + (1 - share) * unknown.T[:, None]
    found = mixed.flatten(0, 2).add_(OUTLIER / NODES).log_()
    return found.sub_(found.amax(0)).float().T.contiguous()


def posterior(at_nodes: Float[Tensor, "*U N"], clear: ClearImages) -> Float[Tensor, "*U S H"]:
    """The probability of each share of known images and hypothesis, after margins counted at the nodes."""
    effective = at_nodes * (EFFECTIVE_SAMPLES / (EFFECTIVE_SAMPLES + at_nodes.sum(-1, keepdim=True)))
    fit = (effective.float() @ log_density()).unflatten(-1, (len(KNOWN_SHARES), -1))
    fit = fit + (hypotheses().log_prior + clear_fit(clear)).float().unsqueeze(-2)
    return fit.flatten(-2).softmax(-1).view(fit.shape)


@cache
def clear_log_density() -> Float[Tensor, "N P BA"]:
    """The log density of clear images at each node, for each purity and each two means that are tried."""
    tried = (torch.tensor(prior.values, dtype=torch.float64) for prior in (UNKNOWN_MEAN, KNOWN_MEAN))
    return log_density_of_clear(*tried)


@cache
def mean_pairs() -> Int[Tensor, " H"]:
    """Which two means each hypothesis has, as columns of `clear_log_density`."""
    known = torch.tensor(KNOWN_MEAN.values, dtype=torch.float64)
    unknown = torch.arange(len(UNKNOWN_MEAN.values)).repeat_interleave(len(UNKNOWN_DEVIATION.values))
    return (len(known) * unknown[:, None] + torch.searchsorted(known, sides().known_mean)).flatten()


def clear_fit(clear: ClearImages) -> Float[Tensor, "*U H"]:
    """How well each hypothesis fits the clear images."""
    return clear.log_likelihood(clear_log_density()).index_select(-1, mean_pairs())


def expected(at_nodes: Float[Tensor, "*U N"], clear: ClearImages) -> ExpectedMixture:
    """The mean over all hypotheses."""
    weight = posterior(at_nodes, clear).sum(-2).double().unflatten(-1, (UNKNOWN, -1))
    of_known, of_unknown, tried = weight.sum(-2), weight.sum(-1), sides()
    return ExpectedMixture(of_known @ tried.known.T, of_unknown @ tried.unknown.T, of_known)


def margin_reached(known: Float[Tensor, "*U N"], recall: float) -> Float[Tensor, "*U"]:
    """The margin that a share `recall` of the known images reaches, given the probability of each cell."""
    below = known.cumsum(-1) - known
    cell = (below <= 1 - recall).sum(-1, keepdim=True) - 1
    within = (1 - recall - below.gather(-1, cell)) / known.gather(-1, cell).clamp(min=OUTLIER / NODES)
    return (LOWEST + STEP * (cell - 0.5 + within.clamp(max=1))).squeeze(-1)


def recall_interval(threshold: Float[Tensor, "*U"], weight: Float[Tensor, "*U A"]) -> Float[Tensor, "*U 2"]:
    """The lowest and the highest share of known images that a threshold may keep.

    Each distribution of known images says one share; those with the least weight at both ends are left out.
    """
    node = ((threshold - LOWEST) / STEP).clamp(0, NODES - 1 - 1e-9)
    left, part = node.long(), (node - node.floor()).unsqueeze(-1)
    kept = kept_from_nodes()
    share, order = ((1 - part) * kept[left] + part * kept[left + 1]).sort(-1)
    total = weight.gather(-1, order).cumsum(-1)
    ends = torch.searchsorted(total, torch.cat([tail * total[..., -1:] for tail in INTERVAL_TAILS], dim=-1))
    return share.gather(-1, ends.clamp(max=share.shape[-1] - 1))


@cache
def typical_unknown() -> Float[Tensor, " N"]:
    """The probability of each cell for unknown images of any stream."""
    nothing = torch.zeros(NODES, dtype=torch.float64)
    return expected(nothing, ClearImages.none()).unknown


@cache
def kept_from_nodes() -> Float[Tensor, "N A"]:
    """The share of known images that a threshold at each node keeps, for each of their distributions."""
    known = sides().known
    return 1 - known.cumsum(0) + known / 2


def fit_mixture(
    at_nodes: Float[Tensor, "*U N"], recent: Float[Tensor, "*U N"], recall: float, clear: ClearImages | None = None
) -> MixtureFit:
    """What follows from margins counted at the nodes, recent ones, and clear images among them.

    The threshold is the margin that a share `recall` of the known images should reach, whatever hypothesis is true, but
    not where an image is almost surely unknown: in a stream of unknown images nothing says where known ones lie.
    Once clear images say it, that rule may lose twice as many known images as wanted, and no more.
    The shapes follow the whole history, the share of known images the recent part of it, and so does the shape of the
    unknown images where that part does not fit the history.
    """
    clear = clear or ClearImages.none()
    mixture = expected(at_nodes, clear)
    found = corrected(mixture.known, mixture.unknown, at_nodes)
    probability = probability_now(recent, found, typical_unknown())
    reached, expects = margin_reached(found.known, recall), margin_reached(mixture.known, recall)
    highest = margin_reached(found.known, max(2 * recall - 1, 0.0))  # twice the loss
    likely = LOWEST + STEP * (probability < LEAST_PROBABILITY).sum(-1).to(reached.dtype)
    trusted = clear.number / (clear.number + TELLING)
    likely -= trusted * (likely - highest).clamp(min=0)
    threshold = torch.where(at_nodes.any(-1), torch.maximum(reached, likely), reached)
    return MixtureFit(threshold, probability, recall_interval(threshold - reached + expects, mixture.weight))
