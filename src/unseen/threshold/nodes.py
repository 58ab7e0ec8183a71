"""Margins counted at nodes of a fixed grid: what is kept of a stream, and where distributions are compared."""

import math
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


def counts(
    margins: Float[Tensor, " n"], weight: Float[Tensor, "*w n"] | None = None, group: Int[Tensor, " n"] | None = None,
    groups: int = 1,
) -> Float[Tensor, "*w N"]:  # fmt: skip
    """The weight of the margins at each node, each divided linearly between its two neighbours.

    Divided, not rounded to one of them, so that a rounding error moves the threshold by as little. With `group`, the
    number of a group from 0 on for each margin, the result is [*w, groups, N].
    """
    left, part = place(margins)
    left = left if group is None else left + NODES * group
    weight = torch.ones_like(part) if weight is None else weight
    rows = weight.view(math.prod(weight.shape[:-1]), len(part))
    found = torch.stack([_sums(left, one, part, NODES * groups) for one in rows])
    return found.view(*weight.shape[:-1], *(() if group is None else (groups,)), NODES)


def _sums(left: Int[Tensor, " n"], weight: Tensor, part: Tensor, size: int) -> Float[Tensor, " size"]:
    if not left.is_cuda:  # NumPy adds up in a third of the time
        one, places, right = (x.numpy() for x in (weight, left, part))
        return torch.from_numpy(
            np.bincount(places, one * (1 - right), size) + np.bincount(places + 1, one * right, size)
        )
    return weight.new_zeros(size).index_add_(0, left, weight * (1 - part)).index_add_(0, left + 1, weight * part)


def interpolate(table: Float[Tensor, " N"], margins: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The value of a table over the nodes at each margin."""
    return torch.from_numpy(interpolate_few(table, margins.double().numpy()))


def interpolate_few(table: Float[Tensor, " N"], margins: Array) -> Array:
    """What `interpolate` does, of and as an array."""
    return np.interp(margins, AT_NODES, table.numpy())


def interpolate_rows(
    tables: Float[Tensor, "R N"], margins: Float[Tensor, " n"], row: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """What `interpolate` does, of another table for each margin: the one in `row`."""
    values = margins.double().clamp(LOWEST, HIGHEST)
    left = ((values - LOWEST) / STEP).long().clamp_(max=NODES - 2)
    at, flat = row * NODES + left, tables.reshape(-1)
    at_left, at_right = flat[at], flat[at + 1]
    return (at_right - at_left) / STEP * (values - (LOWEST + STEP * left)) + at_left


def used_nodes(at_nodes: Array) -> slice:
    """The range of nodes with a margin: only these rows of the hypotheses are read."""
    found = np.flatnonzero(at_nodes.any(0)).tolist() or [0]
    return slice(found[0], found[-1] + 1)
