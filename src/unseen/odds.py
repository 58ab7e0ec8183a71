"""Log-odds computed from logits, never from probabilities.

A sigmoid is exactly 1.0 in float32 above about 16.6, which at tau = 0.01 is a cosine gap of 0.17: probabilities tie
where log-odds still rank.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Top(NamedTuple):
    """The best class of each row against all others together."""

    label: Int[Tensor, " T"]
    peak: Float[Tensor, " T"]  # its logit
    rest: Float[Tensor, " T"]  # logsumexp of the other logits; -inf when there is no other

    @property
    def energy(self) -> Float[Tensor, " T"]:
        """The logsumexp over all classes."""
        return torch.logaddexp(self.peak, self.rest)

    @property
    def log_odds(self) -> Float[Tensor, " T"]:
        """The log-odds of the largest softmax probability."""
        return self.peak - self.rest


LANES = 16  # pieces of a matrix-vector product: enough for many cores, few enough to cost nothing
FEW = 256 * LANES  # rows up to which one core is as fast as several


def logits(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], *, tau: float) -> Float[Tensor, "T C"]:
    """`z @ rows.T / tau`.

    The product with one sample is bound by memory. On one core a product per row takes less time than a matrix-vector
    product; on several, a batch of small products uses all of them.
    """
    is_plain = z.dtype in (torch.float32, torch.float64) and not (z.is_cuda or z.requires_grad or rows.requires_grad)
    if z.shape[0] != 1 or not is_plain:
        return z / tau @ rows.T
    if rows.shape[0] < FEW or torch.get_num_threads() == 1:
        return torch.from_numpy(np.vecdot(rows.numpy(), z.numpy() / tau)).unsqueeze(0)
    scaled, whole = z / tau, len(rows) - len(rows) % LANES
    lanes = rows[:whole].view(LANES, -1, rows.shape[1])
    most = torch.bmm(lanes, scaled.T.expand(LANES, -1, -1)).view(1, whole)
    return most if whole == len(rows) else torch.cat([most, scaled @ rows[whole:].T], dim=1)


CACHE = 1 << 17  # elements of a float32 matrix that stay in a core's cache between two passes


def cache_sized_ranges(matrix: Float[Tensor, "T C"], *, width: int | None = None) -> Iterator[slice]:
    """Yield ranges of rows small enough that several passes over them, or over `width` numbers each, cost one trip."""
    size = max(1, len(matrix) if matrix.is_cuda else CACHE // max(1, width or matrix.shape[-1]))
    for start in range(0, len(matrix), size):
        yield slice(start, start + size)


def energy(logits: Float[Tensor, "T C"]) -> Float[Tensor, " T"]:
    """The logsumexp of each row: the log of its unnormalised mass."""
    if len(logits) == 1:
        return logits.logsumexp(-1)
    result = logits.new_empty(len(logits))
    for rows in cache_sized_ranges(logits):
        torch.logsumexp(logits[rows], dim=-1, out=result[rows])
    return result


def top(logits: Float[Tensor, "T C"]) -> Top:
    """The best class of each row, its logit, and the mass of the rest."""
    label, peak = (logits.new_empty(len(logits), dtype=kind) for kind in (torch.int64, logits.dtype))
    rest = torch.empty_like(peak)
    for rows in cache_sized_ranges(logits):
        torch.max(logits[rows], dim=-1, out=(peak[rows], label[rows]))
        others = logits[rows].scatter(-1, label[rows].unsqueeze(-1), -math.inf)
        torch.logsumexp(others, dim=-1, out=rest[rows])
    return Top(label, peak, rest)


def logit(probability: float) -> float:
    """The log-odds of a probability; infinite at 0 and 1."""
    if probability in (0.0, 1.0):
        return math.copysign(math.inf, probability - 0.5)
    return math.log(probability) - math.log1p(-probability)
