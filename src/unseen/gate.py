"""Decide, from the frozen text alone, which samples may teach which bank (Eq. 2, 3, 10, 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.odds import energy, logits, top

# Rounding moves a trust by about 1e-5 at tau = 0.01 when the shape of a matrix product changes. Anything this close to
# a bound is decided in float64, so that cutting a stream differently cannot flip a route.
UNSURE = 2e-4


class Text(NamedTuple):
    """Logits of the frozen text: what routes samples, and what those that teach are taught towards."""

    known: Float[Tensor, "T K"]
    negative: Float[Tensor, "T L"]


def read_text(labels: LabelSpace, z: Float[Tensor, "T d"], *, tau: float) -> Text:
    """Return how the frozen text reads each sample, in the dtype of `z`."""
    known, negative = (anchors.to(z.dtype) for anchors in (labels.id_anchors, labels.ood_anchors))
    return Text(logits(z, known, tau=tau), logits(z, negative, tau=tau))


def mcm(text: Text) -> Float[Tensor, " T"]:
    """Return the log-odds of the largest softmax probability over the known names (Eq. 2)."""
    return top(text.known).log_odds


def neglabel(text: Text) -> Float[Tensor, " T"]:
    """Return the log-odds of the known names against the negative ones (Eq. 3)."""
    return energy(text.known) - energy(text.negative)


def settled(
    trust: Callable[[Text], Tensor],
    text: Text,
    labels: LabelSpace,
    z: Float[Tensor, "T d"],
    *,
    tau: float,
    bound: float,
) -> Float[Tensor, " T"]:
    """Return `trust` with values near `±bound` computed again in float64: routes must not depend on shapes."""
    return resolved(trust, trust(text), labels, z, tau=tau, bound=bound)


def resolved(
    trust: Callable[[Text], Tensor],
    first: Float[Tensor, " T"],
    labels: LabelSpace,
    z: Float[Tensor, "T d"],
    *,
    tau: float,
    bound: float,
) -> Float[Tensor, " T"]:
    """Return a `first` reading of trust with values near `±bound` computed again in float64."""
    unsure = (first.abs() - bound).abs() < UNSURE
    if first.dtype == torch.float64 or not bool(unsure.any()):
        return first
    exact = trust(read_text(labels, z[unsure].double(), tau=tau))
    return first.double().masked_scatter(unsure, exact)


def decaying_steps(
    taught: Bool[Tensor, "*S T"], seen: Int[Tensor, "*S"], *, rho: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "*S T"], Int[Tensor, "*S"]]:
    """Return the step `rho / sqrt(n)` of the n-th teaching sample, zero for the rest, and the new count (Eq. 11)."""
    count = seen.unsqueeze(-1) + taught.cumsum(-1)
    step = torch.where(taught, rho / count.clamp(min=1).double().sqrt(), 0.0)
    return step.to(dtype), seen + taught.sum(-1)
