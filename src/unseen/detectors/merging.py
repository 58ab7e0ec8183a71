"""Make one state out of several that went on from one start, each over a part of the same stream.

An approximation wherever the order of samples matters: no part saw what the others were taught meanwhile.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

MergeRule = Literal["mean", "sum"]
MERGE_RULES: tuple[MergeRule, ...] = ("mean", "sum")


def merged_bank(
    start: Float[Tensor, "C d"],
    ends: Sequence[Float[Tensor, "C d"]],
    taught: Sequence[Int[Tensor, ""]],
    *,
    rule: MergeRule,
) -> Float[Tensor, "C d"]:
    """The bank moved on the sphere by the parts' moves: their mean weighted by teaching counts, or their sum.

    `mean` is the weighted mean of the banks, drawn back to the sphere. It learns about as much in a round as one part
    did. `sum` learns as much as all of them together, and overshoots where the parts were taught the same.
    """
    counts = torch.stack(list(taught)).double()
    if not bool(counts.any()):
        return start
    weights = counts / counts.sum() if rule == "mean" else torch.ones_like(counts)
    moved = start.double() * (1 - float(weights.sum()))  # what the weights leave of the start: nothing of a mean
    for weight, end in zip(weights.tolist(), ends, strict=True):
        moved.add_(end, alpha=weight)
    return normalize(moved, dim=-1).to(start.dtype)


def sum_of_parts(start: Tensor, ends: Sequence[Tensor]) -> Tensor:
    """A sum over the stream: what stood at the start and what every part added to it. Exact for counts."""
    total = start.clone()
    for end in ends:
        total += end - start
    return total
