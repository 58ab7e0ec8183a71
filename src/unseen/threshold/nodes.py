"""Margins counted at nodes of a fixed grid: what is kept of a stream, and where distributions are compared."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

STEP = 0.5  # nats between nodes; a margin is divided between the two beside it
LOWEST, HIGHEST = -24.0, 36.0
NODES = round((HIGHEST - LOWEST) / STEP) + 1
AT_NODES = LOWEST + STEP * np.arange(NODES)  # the margin of each node
Array = np.ndarray[Any, Any]


def place(margins: Float[Tensor, " n"]) -> tuple[Array, Array]:
    """Return the node left of each margin, and how far the margin lies towards the next, from 0 to 1."""
    position = (margins.double().numpy() / STEP - LOWEST / STEP).clip(0, NODES - 1 - 1e-9)
    left = position.astype(np.int64)
    return left, position - left


def counts(
    margins: Float[Tensor, " n"],
    weight: Float[Tensor, "*w n"] | None = None,
    group: Array | None = None,
) -> Float[Tensor, "*w N"]:
    """Return the weight of the margins at each node, each divided linearly between its two neighbours.

    Divided, not rounded to one of them, so that a rounding error moves the threshold by as little. With `group`, the
    number of a group from 0 on for each margin, the result is [*w, groups, N].
    """
    left, part = place(margins)
    groups = 1 if group is None else int(group[-1]) + 1
    left, size = left if group is None else left + NODES * group, NODES * groups
    weights = np.ones((1, len(part))) if weight is None else weight.numpy().reshape(-1, len(part))
    nodes = [np.bincount(left, one * (1 - part), size) + np.bincount(left + 1, one * part, size) for one in weights]
    shape = *(() if weight is None else weight.shape[:-1]), *(() if group is None else (groups,)), NODES
    return torch.from_numpy(np.stack(nodes).reshape(shape))


def interpolate(table: Float[Tensor, " N"], margins: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the value of a table over the nodes at each margin."""
    return torch.from_numpy(interpolate_few(table, margins.double().numpy()))


def interpolate_few(table: Float[Tensor, " N"], margins: Array) -> Array:
    """Return what `interpolate` does, of and as an array."""
    return np.interp(margins, AT_NODES, table.numpy())


def interpolate_rows(tables: Float[Tensor, "R N"], margins: Float[Tensor, " n"], row: Array) -> Float[Tensor, " n"]:
    """Return what `interpolate` does, of another table for each margin: the one in `row`."""
    values, at_rows = margins.double().numpy().clip(LOWEST, HIGHEST), tables.numpy()
    left = ((values - LOWEST) / STEP).astype(np.int64).clip(max=NODES - 2)
    at_left, at_right = at_rows[row, left], at_rows[row, left + 1]
    return torch.from_numpy((at_right - at_left) / STEP * (values - AT_NODES[left]) + at_left)


def used_nodes(at_nodes: Float[Tensor, "*U N"]) -> slice:
    """Return the range of nodes with a margin: only these rows of the hypotheses are read."""
    found = np.flatnonzero(at_nodes.cpu().view(-1, NODES).numpy().any(0)).tolist() or [0]
    return slice(found[0], found[-1] + 1)
