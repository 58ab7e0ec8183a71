"""Read log-odds out of logits without ever forming a probability.

A sigmoid is exactly 1.0 in float32 above about 16.6, which at tau = 0.01 is a cosine gap of 0.17: probabilities tie
where log-odds still rank.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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
        """Return the logsumexp over all classes."""
        return torch.logaddexp(self.peak, self.rest)

    @property
    def log_odds(self) -> Float[Tensor, " T"]:
        """Return the log-odds of the largest softmax probability."""
        return self.peak - self.rest


def energy(logits: Float[Tensor, "T C"]) -> Float[Tensor, " T"]:
    """Return the logsumexp of each row: the log of its unnormalised mass."""
    return torch.logsumexp(logits, dim=-1)


def top(logits: Float[Tensor, "T C"]) -> Top:
    """Return the best class of each row, its logit, and the mass of the rest."""
    peak, label = logits.max(dim=-1)
    others = logits.scatter(-1, label.unsqueeze(-1), -math.inf)
    return Top(label, peak, energy(others))


def logit(probability: float) -> float:
    """Return the log-odds of a probability; infinite at 0 and 1."""
    if probability in (0.0, 1.0):
        return math.copysign(math.inf, probability - 0.5)
    return math.log(probability) - math.log1p(-probability)
