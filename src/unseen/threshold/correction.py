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
CHANGED = 0.1  # nats per recent margin by which another distribution of unknown images fits better where it counts half
NEW_IMAGES, NEW_ROUNDS = 32.0, 24  # unknown images that lie as in any stream, and rounds, where that one is fitted anew


class Corrected(NamedTuple):
    """Where known and unknown images lie: the probability of each cell."""

    known: Float[Tensor, "*U N"]
    unknown: Float[Tensor, "*U N"]


def corrected(
    known: Float[Tensor, "*U N"], unknown: Float[Tensor, "*U N"], at_nodes: Float[Tensor, "*U N"]
) -> Corrected:
    """What is expected of both sides, corrected by margins counted at the nodes.

    Each margin counts for a side with the probability that its image belongs there, beside EXPECTED_IMAGES that lie as
    expected: the more images and the clearer the modes, the more the distributions are those of the stream.
    """
    counted, expected = at_nodes.numpy(), np.stack([known.numpy(), unknown.numpy()])
    images = _images(counted)
    ratio = likelihood_ratio(*expected)
    odds = odds_of_unknown(counted, ratio)  # first, because sides that overlap would learn from a wrong one
    expected *= EXPECTED_IMAGES
    sides = np.empty_like(expected)
    for _ in range(ROUNDS):
        mixed = ratio + odds
        np.divide(ratio, mixed, out=sides[0])
        np.divide(odds, mixed, out=sides[1])
        sides *= counted
        odds = _odds(images, np.add.reduce(sides[0], -1, keepdims=True))
        sides += expected
        sides /= np.add.reduce(sides, -1, keepdims=True)
        ratio = likelihood_ratio(*sides)
    return Corrected(*map(torch.from_numpy, sides))


def likelihood_ratio(known: Array, unknown: Array) -> Array:
    """How much more likely a known image is at each node than an unknown one; never less at a higher margin.

    Both tails say little: below the peak of the known images the ratio only falls, above it only rises.
    """
    ratio = unknown + OUTLIER / NODES
    np.divide(known, ratio, out=ratio)
    node, peak = np.arange(NODES), known.argmax(-1)[..., None]
    is_below = node < peak
    falling = np.where(node > peak, np.inf, ratio)[..., ::-1]
    np.minimum.accumulate(falling, -1, out=falling)
    np.copyto(ratio, -np.inf, where=is_below)
    np.maximum.accumulate(ratio, -1, out=ratio)
    np.copyto(ratio, falling[..., ::-1], where=is_below)
    return ratio


def probability_now(
    recent: Float[Tensor, "*U N"], found: Corrected, typical_unknown: Float[Tensor, " N"]
) -> Float[Tensor, "*U N"]:
    """The probability that an image at each node is known, with the share of known images in recent margins.

    Unknown images of another kind may have come: where recent margins do not fit the history, the distribution of
    unknown images is fitted to them anew, starting from the typical one of all streams. Known images stay where they
    are.
    """
    counted, known, unknown = (part.numpy().reshape(-1, NODES) for part in (recent, *found))
    probability, fit = probability_and_fit(counted, known, unknown)
    is_odd = best_log_likelihood(counted) - fit > CHANGED / 2
    if is_odd.any():
        counted, known, before = counted[is_odd], known[is_odd], probability[is_odd]
        unknown = fitted_unknown(counted, known, typical_unknown.numpy())
        anew, better_fit = probability_and_fit(counted, known, unknown)
        gain = (better_fit - fit[is_odd])[:, None]
        weight = (gain / CHANGED - 0.5).clip(0, 1)  # no step, so that a rounding error changes as little
        probability[is_odd] = before + weight * (anew - before)
    return torch.from_numpy(probability.reshape(recent.shape))


def probability_and_fit(counted: Array, known: Array, unknown: Array) -> tuple[Array, Array]:
    """The probability [U, N] that an image at each node is known, and how well the mixture fits margins [U]."""
    ratio = likelihood_ratio(known, unknown)
    share = share_of_known(counted, ratio)
    return probability_of(share, ratio), log_likelihood(counted, share, known, unknown)


def fitted_unknown(counted: Array, known: Array, typical: Array) -> Array:
    """The distribution of unknown images among margins counted at the nodes, given that of known ones."""
    margins = counted.sum(-1, keepdims=True)
    images, expected = _images(counted), NEW_IMAGES * typical
    ratio = likelihood_ratio(known, np.broadcast_to(typical, known.shape))
    odds = odds_of_unknown(counted, ratio)
    for _ in range(NEW_ROUNDS):
        unknown = counted * odds
        unknown /= ratio + odds
        odds = _odds(images, margins - np.add.reduce(unknown, -1, keepdims=True))
        unknown += expected
        unknown /= np.add.reduce(unknown, -1, keepdims=True)
        ratio = likelihood_ratio(known, unknown)
    return unknown


def log_likelihood(counted: Array, share: Array, known: Array, unknown: Array) -> Array:
    """The mean log probability [*U] of margins counted at the nodes under a mixture."""
    mixed = share * known + (1 - share) * unknown + OUTLIER / NODES
    return (counted * np.log(mixed)).sum(-1) / np.maximum(counted.sum(-1), 1)


def best_log_likelihood(counted: Array) -> Array:
    """The mean log probability [*U] of margins under their own distribution: no mixture fits better."""
    share = counted / np.maximum(counted.sum(-1, keepdims=True), 1)
    return (share * np.log(share, where=share > 0, out=np.zeros_like(share))).sum(-1)


def share_of_known(counted: Array, ratio: Array) -> Array:
    """The share [*U, 1] of known images among margins counted at the nodes, given where both kinds lie."""
    return 1 / (1 + odds_of_unknown(counted, ratio))


def odds_of_unknown(counted: Array, ratio: Array) -> Array:
    """The share of unknown images over that of known ones: a round of what follows takes fewer steps with it."""
    images, weighted = _images(counted), counted * ratio
    odds, of_known = np.ones_like(images), np.empty_like(weighted)
    for _ in range(SHARE_ROUNDS):
        np.add(ratio, odds, out=of_known)
        np.divide(weighted, of_known, out=of_known)
        odds = _odds(images, np.add.reduce(of_known, -1, keepdims=True))
    return odds


def _images(counted: Array) -> Array:
    """How many images there are to divide between both sides."""
    return counted.sum(-1, keepdims=True) + SHARE_IMAGES


def _odds(images: Array, of_known: Array) -> Array:
    return (images - of_known) / (of_known + SHARE_IMAGES)


def probability_of(share: Array, ratio: Array) -> Array:
    """The probability [*U, N] that an image at each node is known, given shares [*U, 1]."""
    odds = share * ratio
    return odds / (odds + (1 - share))
