"""What an image related to no name shows: its logits are draws from one normal per side."""

from __future__ import annotations

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

FEW_NAMES = 4  # with fewer, the spread of logits cannot be estimated from all but the best


def typical_energy(count: int, deviation: Tensor) -> Tensor:
    """The typical logsumexp of `count` draws from a normal around 0: Derrida's random energy model.

    The mean, log n + deviation^2 / 2, is typical only while many draws share the mass. From a deviation of
    sqrt(2 log n) on, the largest few hold it all, and the typical value continues along the tangent.
    """
    frozen = math.sqrt(2 * math.log(max(count, 2)))
    return torch.where(deviation < frozen, math.log(count) + deviation.square() / 2, frozen * deviation)


@cache
def expected_maximum(count: int, *, power: int = 1) -> float:
    """The mean of the largest of `count` standard normals, or of its `power`, by quadrature.

    >>> round(expected_maximum(1), 6), round(expected_maximum(2), 6)
    (0.0, 0.56419)
    """
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    below = torch.special.log_ndtr(x) * (count - 1)
    density = count * torch.exp(below - x.square() / 2) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(x**power * density, x))


def unrelated_normal(
    mean: Float[Tensor, " T"], variance: Float[Tensor, " T"], best: Float[Tensor, " T"], count: int
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Mean and deviation of the normal that `count` logits are draws from, estimated from all but the best.

    The right name of a known image is not a draw; among few names it would widen the normal of unrelated images. Both
    moments are corrected for the loss of a best that is a draw.
    """
    if count < FEW_NAMES:
        return mean, variance.sqrt()
    rest = (count * mean - best) / (count - 1)
    square = (count * (variance + mean.square()) - best.square()) / (count - 1) - rest.square()
    first, second = expected_maximum(count), expected_maximum(count, power=2)
    kept = (count - second) / (count - 1) - (count - 2 + second) / (count - 1) ** 2
    deviation = (square.clamp(min=0) / kept).sqrt()
    return rest + first / (count - 1) * deviation, deviation
