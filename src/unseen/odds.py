"""Logits of names, and log-odds computed from them, never from probabilities.

A sigmoid is exactly 1.0 in float32 above about 16.6, which at tau = 0.01 is a cosine gap of 0.17: probabilities tie
where log-odds still rank.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.labels import LabelSpace


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


def logits(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], *, tau: float) -> Float[Tensor, "T C"]:
    """The cosines of samples to rows, over a temperature."""
    return z / tau @ rows.T


def energy(logits: Float[Tensor, "T C"]) -> Float[Tensor, " T"]:
    """The logsumexp of each row: the log of its unnormalised mass."""
    return logits.logsumexp(-1)


def top(logits: Float[Tensor, "T C"]) -> Top:
    """The best class of each row, its logit, and the mass of the rest."""
    label, peak = (logits.new_empty(len(logits), dtype=kind) for kind in (torch.int64, logits.dtype))
    rest = torch.empty_like(peak)
    for rows in cache_sized_ranges(logits):
        torch.max(logits[rows], dim=-1, out=(peak[rows], label[rows]))
        others = logits[rows].scatter(-1, label[rows].unsqueeze(-1), -math.inf)
        torch.logsumexp(others, dim=-1, out=rest[rows])
    return Top(label, peak, rest)


def cache_sized_ranges(matrix: Float[Tensor, "T C"], *, size: int = 1 << 17) -> Iterator[slice]:
    """Yield ranges of rows whose `size` elements stay in the cache of a core.

    Several passes over them then cost one trip to memory: half the time of `top`, of reads and of rewriting a bank.
    """
    count = max(1, len(matrix) if matrix.is_cuda else size // max(1, matrix.shape[-1]))
    for start in range(0, len(matrix), count):
        yield slice(start, start + count)


def logit(probability: float) -> float:
    """The log-odds of a probability; infinite at 0 and 1."""
    if probability in (0.0, 1.0):
        return math.copysign(math.inf, probability - 0.5)
    return math.log(probability) - math.log1p(-probability)


class TextLogits(NamedTuple):
    """Cosines of each sample to the text of each name, divided by a temperature."""

    known: Float[Tensor, "T K"]
    negative: Float[Tensor, "T L"]


def text_logits(labels: LabelSpace, z: Float[Tensor, "T d"], *, tau: float) -> TextLogits:
    """The logits of the known and of the negative names, in the dtype of `z`."""
    known, negative = (anchors.to(z.dtype) for anchors in (labels.id_anchors, labels.ood_anchors))
    return TextLogits(logits(z, known, tau=tau), logits(z, negative, tau=tau))


def mcm(text: TextLogits) -> Float[Tensor, " T"]:
    """The log-odds of the largest softmax probability over the known names (Eq. 2)."""
    return top(text.known).log_odds


def neglabel(text: TextLogits) -> Float[Tensor, " T"]:
    """The log-odds of the known names against the negative ones (Eq. 3)."""
    return energy(text.known) - energy(text.negative)
