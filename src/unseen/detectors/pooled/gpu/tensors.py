"""Tensors that kernels read and write, which stay where they are: graphs hold their addresses."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.pooled.gpu.formulas import FrozenSamples
from unseen.detectors.pooled.state import Fitted, Sums


class InputRows(NamedTuple):
    """Samples in rows, `capacity` for each stream."""

    samples: FrozenSamples
    baseline: Float[Tensor, " R"]
    is_new: Int[Tensor, " R"]


class TaughtRows(NamedTuple):
    """What the samples of one update teach, S * B rows."""

    rows: Float[Tensor, "SB W"]  # as `state.packed` has them
    weights: Float[Tensor, "SB 2"]  # by side; 0 for an image that was learned before
    weighted: Float[Tensor, "SB 2 d"]
    z: Float[Tensor, "SB d"]


class ResidentState(NamedTuple):
    """What updates change, of S streams, in tensors that stay where they are."""

    seen: Int[Tensor, " S"]
    sums: Sums
    fitted: Fitted
    inverse: Float[Tensor, "S d d"]  # of the matrix of the direction
    error: Float[Tensor, " S"]  # the largest of all updates
