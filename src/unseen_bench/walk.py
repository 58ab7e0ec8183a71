"""A stream in which every sample teaches, read before each one's own update: what regret and the released code need."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from unseen.scan.blocked import BlockUpdate, apply_update, blocks, learn


class Walked(NamedTuple):
    """Some samples of a stream that all teach: after i of n a row is `scale[i] * (row - coef[:i].T @ z[:i])`."""

    rows: slice
    cosine: Float[Tensor, "n C"]  # of each sample to the bank before its own update
    coef: Float[Tensor, "n C"]
    scale: Float[Tensor, "n C"]
    after: Float[Tensor, "C d"]  # the bank


def walk(
    bank: Float[Tensor, "C d"],
    z: Float[Tensor, "T d"],
    targets: Float[Tensor, "T C"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
) -> Iterator[Walked]:
    """Yield blocks of a stream in which every sample teaches, read before its own update (Eq. 8)."""
    for rows in blocks(step, kappa):
        cosine, gram = z[rows] @ bank.T, z[rows] @ z[rows].T
        coef, scale = learn(cosine, gram, targets[rows], step[rows] / kappa, kappa)
        cosine = (cosine - gram.tril(-1) @ coef) * scale[:-1]
        bank = apply_update(bank, BlockUpdate(z[rows], coef, scale))
        yield Walked(rows, cosine, coef, scale[:-1], bank)
