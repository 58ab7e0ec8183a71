"""Margins counted at nodes of a fixed grid: what is kept of a stream, and where distributions are compared."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

STEP = 0.5  # nats between nodes; a margin is divided between the two beside it
LOWEST, HIGHEST = -24.0, 36.0
NODES = round((HIGHEST - LOWEST) / STEP) + 1
AT_NODES = LOWEST + STEP * np.arange(NODES)  # the margin of each node
Array = np.ndarray[Any, Any]


def place(margins: Float[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """The node left of each margin, and how far the margin lies towards the next, from 0 to 1."""
    position = (margins.double() / STEP - LOWEST / STEP).clamp(0, NODES - 1 - 1e-9)
    left = position.long()
    return left, position - left


def counts(margins: Float[Tensor, " n"], weight: Float[Tensor, " n"] | None = None) -> Float[Tensor, " N"]:
    """The weight of the margins at each node, each divided linearly between its two neighbours.

    Divided, not rounded to one of them, so that a rounding error moves the threshold by as little.
    """
    left, part = place(margins)
    weight = torch.ones_like(part) if weight is None else weight
    found = weight.new_zeros(NODES)
    return found.index_add_(0, left, weight * (1 - part)).index_add_(0, left + 1, weight * part)


def interpolate(table: Float[Tensor, " N"], margins: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The value of a table over the nodes at each margin."""
    return torch.from_numpy(np.interp(margins.double().numpy(), AT_NODES, table.numpy()))
