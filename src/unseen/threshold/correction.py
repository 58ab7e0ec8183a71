"""Distributions of known and unknown images, corrected by the margins themselves (expectation maximisation)."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.threshold.nodes import NODES, Array

OUTLIER = 1e-4  # mass that no distribution explains, so that one odd margin rules nothing out
SHARE_ROUNDS, ROUNDS = 15, 8  # of expectation maximisation: of the share of known images alone, and of all
EXPECTED_IMAGES = 64.0  # images of each side that lie as expected, beside those of the stream
SHARE_IMAGES = 2.0  # images of each side from which the share of known ones is estimated, beside those of the stream


class Corrected(NamedTuple):
    """Where known images lie, and how much that differs from unknown ones."""

    known: Float[Tensor, "*U N"]  # probability of each cell
    ratio: Float[Tensor, "*U N"]  # how much more likely a known image is at each node than an unknown one


def corrected(
    known: Float[Tensor, "*U N"], unknown: Float[Tensor, "*U N"], at_nodes: Float[Tensor, "*U N"]
) -> Corrected:
    """Return what is expected of both sides, corrected by margins counted at the nodes.

    Each margin counts for a side with the probability that its image belongs there, beside EXPECTED_IMAGES that lie as
    expected: the more images and the clearer the modes, the more the distributions are those of the stream.
    """
    counted, expected = at_nodes.numpy(), np.stack([known.numpy(), unknown.numpy()])
    ratio = likelihood_ratio(*expected)
    share = share_of_known(counted, ratio)  # first, because sides that overlap would learn from a wrong one
    for _ in range(ROUNDS):
        probability = probability_of(share, ratio)
        share = _share(counted, probability)
        sides = EXPECTED_IMAGES * expected + counted * np.stack([probability, 1 - probability])
        sides /= sides.sum(-1, keepdims=True)
        ratio = likelihood_ratio(*sides)
    return Corrected(torch.from_numpy(sides[0]), torch.from_numpy(ratio))


def likelihood_ratio(known: Array, unknown: Array) -> Array:
    """Return how much more likely a known image is at each node than an unknown one; never less at a higher margin.

    Both tails say little: below the peak of the known images the ratio only falls, above it only rises.
    """
    plain = known / (unknown + OUTLIER / NODES)
    beyond = np.arange(NODES) - known.argmax(-1)[..., None]  # nodes beyond the peak
    falling = np.minimum.accumulate(np.where(beyond > 0, np.inf, plain)[..., ::-1], -1)[..., ::-1]
    rising = np.maximum.accumulate(np.where(beyond < 0, -np.inf, plain), -1)
    return np.where(beyond < 0, falling, rising)


def probability_after(recent: Float[Tensor, "*U N"], ratio: Float[Tensor, "*U N"]) -> Float[Tensor, "*U N"]:
    """Return the probability that an image at each node is known, with the share of known images in recent margins."""
    ratios = ratio.numpy()
    return torch.from_numpy(probability_of(share_of_known(recent.numpy(), ratios), ratios))


def share_of_known(counted: Array, ratio: Array) -> Array:
    """Return the share [*U, 1] of known images among margins counted at the nodes, given where both kinds lie."""
    share = np.full((*counted.shape[:-1], 1), 0.5)
    for _ in range(SHARE_ROUNDS):
        share = _share(counted, probability_of(share, ratio))
    return share


def _share(counted: Array, probability: Array) -> Array:
    count = counted.sum(-1, keepdims=True) + 2 * SHARE_IMAGES
    return ((counted * probability).sum(-1, keepdims=True) + SHARE_IMAGES) / count


def probability_of(share: Array, ratio: Array) -> Array:
    """Return the probability [*U, N] that an image at each node is known, given shares [*U, 1]."""
    odds = share * ratio
    return odds / (odds + (1 - share))
