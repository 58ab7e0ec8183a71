"""Which samples may teach which bank, and by how much: routes and steps (Eq. 10, 11)."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.odds import TextLogits, text_logits

# Rounding moves a trust by about 1e-5 at tau = 0.01 when the shape of a matrix product changes. A trust this close to
# the bound is computed in float64, so that the block size cannot change a route.
BOUND_TOLERANCE = 2e-4


def exact_near_bound(
    trust: Float[Tensor, " T"],
    compute: Callable[[TextLogits], Tensor],
    labels: LabelSpace,
    z: Float[Tensor, "T d"],
    *,
    tau: float,
    bound: float,
) -> Float[Tensor, " T"]:
    """`trust` with the values near `±bound` computed again in float64 by `compute(text_logits)`."""
    near = (trust.abs() - abs(bound)).abs() < BOUND_TOLERANCE  # a beta below 0.5 has a negative bound
    if trust.dtype == torch.float64 or not bool(near.any()):
        return trust
    exact = compute(text_logits(labels, z[near].double(), tau=tau))
    return trust.double().masked_scatter(near, exact)


def routes(trust: Float[Tensor, " T"], bound: float) -> tuple[Bool[Tensor, " T"], Bool[Tensor, " T"]]:
    """Which samples teach the known bank and which the unknown bank (Eq. 10)."""
    return trust >= bound, trust <= -bound


def decaying_steps(
    taught: Bool[Tensor, "*S T"], seen: Int[Tensor, "*S"], *, rho: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "*S T"], Int[Tensor, "*S"]]:
    """The step `rho / sqrt(n)` of the n-th teaching sample, zero for the rest, and the new count (Eq. 11)."""
    count = seen.unsqueeze(-1) + taught.cumsum(-1)
    step = torch.where(taught, rho / count.clamp(min=1).double().sqrt(), 0.0)
    return step.to(dtype), seen + taught.sum(-1)
