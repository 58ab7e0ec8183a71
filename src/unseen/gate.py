"""Decide, from the frozen text anchors alone, which samples may teach which bank (Eq. 2, 3, 10, 11)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.odds import energy, top

# Rounding moves a trust by about 1e-5 at tau = 0.01 when the shape of a matrix product changes. Anything this close to
# a bound is decided in float64, so that cutting a stream differently cannot flip a route.
UNSURE = 1e-3


def mcm(labels: LabelSpace, z: Float[Tensor, "T d"], *, tau: float) -> Float[Tensor, " T"]:
    """Return the log-odds of the largest softmax probability over the known names (Eq. 2)."""
    return top(z @ labels.id_anchors.T / tau).log_odds


def neglabel(labels: LabelSpace, z: Float[Tensor, "T d"], *, tau: float) -> Float[Tensor, " T"]:
    """Return the log-odds of the known names against the negative ones (Eq. 3)."""
    return energy(z @ labels.id_anchors.T / tau) - energy(z @ labels.ood_anchors.T / tau)


Trust = Callable[..., Float[Tensor, " T"]]


def settled(trust: Trust, labels: LabelSpace, z: Float[Tensor, "T d"], *, tau: float, bound: float) -> Tensor:
    """Return `trust` with values near `±bound` computed again in float64: routes must not depend on shapes."""
    first = trust(labels, z, tau=tau)
    unsure = (first.abs() - bound).abs() < UNSURE
    if first.dtype == torch.float64 or not bool(unsure.any()):
        return first
    exact = trust(labels.to(dtype=torch.float64), z[unsure].double(), tau=tau)
    return first.double().masked_scatter(unsure, exact)


def decaying_steps(
    taught: Bool[Tensor, " T"], seen: Int[Tensor, ""], *, rho: float, dtype: torch.dtype
) -> tuple[Float[Tensor, " T"], Int[Tensor, ""]]:
    """Return the step `rho / sqrt(n)` of the n-th teaching sample, zero for the rest, and the new count (Eq. 11)."""
    count = seen + taught.cumsum(0)
    step = torch.where(taught, rho / count.clamp(min=1).double().sqrt(), 0.0)
    return step.to(dtype), seen + taught.sum()
