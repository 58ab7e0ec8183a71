"""Where known and unknown images lie among unlabelled margins: a posterior over a grid of two-part mixtures.

The deviation of the margins of known images differs little between streams; their mean, and mean and deviation of the
unknown, differ much. Every mixture of a grid (a hypothesis) is weighted by its fit to the margins and to what clear
images say; docs/method.md has the figures.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.threshold.clear import ClearImages

STEP = 0.5  # nats between nodes; a margin is divided between the two beside it
LOWEST, HIGHEST = -24.0, 36.0
NODES = round((HIGHEST - LOWEST) / STEP) + 1
EFFECTIVE_SAMPLES = 64.0  # limit of the weight of the data: the mixtures only approximate real margins
OUTLIER = 1e-4  # mass that no hypothesis explains, so that one odd margin rules nothing out
KNOWN_SHARES = (0.003, 0.05, 0.25, 0.5, 0.75, 0.95, 0.997)  # of the stream
SKEWED_BELOW, SKEW_WIDTH = 9.0, 2.0  # mean margin of known images under which they likely have a tail to the right
LEAST_PROBABILITY = 0.02  # an image that is known with less than this is called unknown, whatever recall is wanted
SHARE_ROUNDS, SHARE_SAMPLES = 15, 2.0  # steps of the estimate of the share, and images of each kind it starts from
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


UNKNOWN_MEAN = Prior(-2.0, 2.5, _linear(-20, 2, 11))
UNKNOWN_DEVIATION = Prior(3.6, 0.35, (1.5, 2.5, 4.0, 6.0), of_log=True)
KNOWN_MEAN = Prior(9.0, 4.0, _linear(2, 1.5, 17))
KNOWN_DEVIATION = Prior(5.2, 0.15, (4.2, 5.1, 6.1), of_log=True)


class Hypotheses(NamedTuple):
    """Every pair of distributions that is tried."""

    unknown_mean: Float[Tensor, " H"]
    unknown_deviation: Float[Tensor, " H"]
    known_mean: Float[Tensor, " H"]
    known_deviation: Float[Tensor, " H"]
    is_skewed: Bool[Tensor, " H"]  # whether margins of known images have a tail to the right
    log_prior: Float[Tensor, " H"]

    def unknown_below(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """Return the share of unknown images below each x: the best of many chance matches, a Gumbel."""
        return gumbel_of(x, self.unknown_mean, self.unknown_deviation)

    def known_below(self, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """Return the share of known images below each x."""
        skewed = gumbel_of(x, self.known_mean, self.known_deviation)
        normal = torch.special.ndtr((x - self.known_mean) / self.known_deviation)
        return torch.where(self.is_skewed, skewed, normal)


class Cells(NamedTuple):
    """The probability of the cell around each node."""

    known: Float[Tensor, "N H"]
    unknown: Float[Tensor, "N H"]


class MixtureFit(NamedTuple):
    """What follows from margins: a threshold and, at each node, the probability that an image there is known."""

    threshold: Float[Tensor, "*U"]
    probability: Float[Tensor, "*U N"]


def gumbel_of(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the share of a Gumbel with this mean and standard deviation below x."""
    scale = deviation * math.sqrt(6) / math.pi
    return torch.exp(-torch.exp(-(x - mean) / scale - EULER))


@cache
def hypotheses() -> Hypotheses:
    """Return the grid of hypotheses."""
    priors = (UNKNOWN_MEAN, UNKNOWN_DEVIATION, KNOWN_MEAN, KNOWN_DEVIATION)
    values = [
        *(torch.tensor(prior.values, dtype=torch.float64) for prior in priors),
        torch.tensor([-1.0, 1.0]).double(),
    ]
    unknown_mean, unknown_deviation, known_mean, known_deviation, sign = (
        part.reshape(-1) for part in torch.meshgrid(*values, indexing="ij")
    )
    weights = [*(prior.log_weights for prior in priors), torch.zeros(2, dtype=torch.float64)]
    log_prior = torch.stack([part.reshape(-1) for part in torch.meshgrid(*weights, indexing="ij")]).sum(0)
    skew = torch.nn.functional.logsigmoid(sign * (SKEWED_BELOW - known_mean) / SKEW_WIDTH)
    return Hypotheses(unknown_mean, unknown_deviation, known_mean, known_deviation, sign > 0, log_prior + skew)


@cache
def cells() -> Cells:
    """Return the probability of every cell under every hypothesis."""
    edges = torch.arange(LOWEST - STEP / 2, HIGHEST + STEP, STEP, dtype=torch.float64)
    edges[0], edges[-1] = -torch.inf, torch.inf
    grid = hypotheses()
    return Cells(*(below(edges.unsqueeze(1)).diff(dim=0) for below in (grid.known_below, grid.unknown_below)))


@cache
def log_density() -> Float[Tensor, "N SH"]:
    """Return the log probability of every cell under every hypothesis and share of known images."""
    known, unknown = cells()
    mixed = [(share * known + (1 - share) * unknown + OUTLIER / NODES).log().float() for share in KNOWN_SHARES]
    return torch.cat(mixed, dim=1)


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


def place(margins: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """Return the node left of each margin, and how far the margin lies towards the next, from 0 to 1."""
    position = (margins.double() / STEP - LOWEST / STEP).clamp(0, NODES - 1 - 1e-9)
    left = position.long()
    return left, position - left


def counts(margins: Float[Tensor, " n"], weight: Float[Tensor, "*w n"] | None = None) -> Float[Tensor, "*w N"]:
    """Return the weight of the margins at each node, each divided linearly between its two neighbours.

    Divided, not rounded to one of them, so that a rounding error moves the threshold by as little.
    """
    left, part = place(margins)
    weight = torch.ones_like(part) if weight is None else weight
    nodes = torch.zeros(*weight.shape[:-1], NODES, dtype=torch.float64)
    right = weight * part
    return nodes.index_add_(-1, left, weight - right).index_add_(-1, left + 1, right)


def interpolate(table: Float[Tensor, " N"], margins: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the value of a table over the nodes at each margin."""
    left, part = place(margins)
    return torch.lerp(table[left], table[left + 1], part)


def posterior(at_nodes: Float[Tensor, "*U N"], clear: ClearImages) -> Float[Tensor, "*U S H"]:
    """Return the probability of each hypothesis and share of known images, after margins counted at the nodes."""
    weighted = at_nodes * (EFFECTIVE_SAMPLES / (EFFECTIVE_SAMPLES + at_nodes.sum(-1, keepdim=True)))
    used = used_nodes(at_nodes)
    fit = (weighted[..., used].float() @ log_density()[used]).unflatten(-1, (len(KNOWN_SHARES), -1)).double()
    grid = hypotheses()
    fit += (grid.log_prior + clear.log_likelihood_of_mean(grid.known_mean)).unsqueeze(-2)
    return fit.flatten(-2).softmax(-1).view_as(fit)


def used_nodes(at_nodes: Float[Tensor, "*U N"]) -> slice:
    """Return the range of nodes with a margin: only these rows of the hypotheses are read."""
    found = at_nodes.reshape(-1, NODES).any(0).nonzero().flatten().tolist() or [0]
    return slice(found[0], found[-1] + 1)


def known_share(
    recent: Float[Tensor, "*U N"], known: Float[Tensor, "*U N"], unknown: Float[Tensor, "*U N"]
) -> Float[Tensor, "*U 1"]:
    """Return the share of known images among recent margins, given where both kinds lie (expectation maximisation)."""
    share = recent.new_full((*recent.shape[:-1], 1), 0.5)
    count = recent.sum(-1, keepdim=True) + 2 * SHARE_SAMPLES
    for _ in range(SHARE_ROUNDS):
        likely = (recent * probability_of(share, known, unknown)).sum(-1, keepdim=True)
        share = (likely + SHARE_SAMPLES) / count
    return share


def probability_of(
    share: Float[Tensor, "*U 1"], known: Float[Tensor, "*U N"], unknown: Float[Tensor, "*U N"]
) -> Float[Tensor, "*U N"]:
    """Return the probability that an image at each node is known; a higher margin is never less known.

    Both tails say little: below the peak of the known images the probability only falls, above it only rises.
    """
    odds = share * known
    plain = odds / (odds + (1 - share) * (unknown + OUTLIER / NODES))
    beyond = torch.arange(NODES) - known.argmax(-1, keepdim=True)  # nodes beyond the peak
    falling = plain.masked_fill(beyond > 0, torch.inf).flip(-1).cummin(-1).values.flip(-1)
    rising = plain.masked_fill(beyond < 0, -torch.inf).cummax(-1).values
    return torch.where(beyond < 0, falling, rising)


def fit_mixture(
    at_nodes: Float[Tensor, "*U N"], recent: Float[Tensor, "*U N"], recall: float, clear: ClearImages | None = None
) -> MixtureFit:
    """Return threshold and probabilities after margins counted at the nodes, recent ones, and clear images among them.

    The threshold is the margin that a share `recall` of the known images should reach, the mean over all hypotheses,
    but not where an image is almost surely unknown: in a stream of unknown images nothing says where known ones lie.
    The shapes follow the whole history, the share of known images the recent part of it. Several counts in rows are
    fitted in one pass over the hypotheses, which costs little more than one of them.
    """
    weight = posterior(at_nodes, clear or ClearImages.none()).sum(-2)
    known, unknown = (weight @ side.T for side in cells())
    probability = probability_of(known_share(recent, known, unknown), known, unknown)
    threshold = weight @ quantiles(recall)
    likely = LOWEST + STEP * (probability < LEAST_PROBABILITY).sum(-1).to(threshold.dtype)
    return MixtureFit(torch.where(at_nodes.any(-1), torch.maximum(threshold, likely), threshold), probability)
