"""How well scores separate ID from OOD: functions of (id_scores, ood_scores), exact with ties, as fractions of one.

Higher scores mean more ID. The field has two conventions of FPR95; both are here by name. With nothing on one
side every metric is undefined and comes back as nan, not as an error: a stream of one kind only is a legitimate
experiment, and its other figures are still defined. A NaN score has no rank and is refused.

Verdicts are judged by what was kept of the known and rejected of the unknown, and confidences by how far they lie from
the share of known images among those with much the same p_known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.errors import DataError, SettingError


class Ranks(NamedTuple):
    """Positive and negative scores in float64, each ascending; the two sides may differ in length."""

    positive: Float[Tensor, " P"]
    negative: Float[Tensor, " N"]

    @property
    def is_empty(self) -> bool:
        """Whether one side has no score, so that nothing can be compared."""
        return not (len(self.positive) and len(self.negative))

    def for_negatives(self) -> Ranks:
        """The ranks of the opposite question: finding negatives by low scores."""
        return Ranks(-self.negative.flip(0), -self.positive.flip(0))


def auroc(id_scores: Float[Tensor, " P"], ood_scores: Float[Tensor, " N"]) -> float:
    """How often an ID sample outscores an OOD one; a tie counts half."""
    return _auroc(_ranks(id_scores, ood_scores))


def fpr95_id(id_scores: Float[Tensor, " P"], ood_scores: Float[Tensor, " N"]) -> float:
    """The share of OOD accepted when 95 % of ID is accepted (MCM, NegLabel, CSP and the online paper)."""
    return _fpr(_ranks(id_scores, ood_scores), 0.95)


def fpr95_ood(id_scores: Float[Tensor, " P"], ood_scores: Float[Tensor, " N"]) -> float:
    """The share of ID flagged when 95 % of OOD is caught (OpenOOD, pytorch-ood)."""
    return _fpr(_ranks(id_scores, ood_scores).for_negatives(), 0.95)


def balanced_at_recall(
    id_scores: Float[Tensor, " P"], ood_scores: Float[Tensor, " N"], *, recall: float = 0.95
) -> float:
    """The balanced accuracy of the highest threshold that truly keeps a share `recall` of ID."""
    if not 0 < recall <= 1:
        raise SettingError(f"expected a recall in (0, 1], got {recall!r}; 0.95 is customary")
    ranks = _ranks(id_scores, ood_scores)
    if ranks.is_empty:
        return math.nan
    threshold = _threshold(ranks, recall)
    kept, accepted = (float((side >= threshold).double().mean()) for side in ranks)
    return (kept + 1 - accepted) / 2


def best_balanced(id_scores: Float[Tensor, " P"], ood_scores: Float[Tensor, " N"]) -> float:
    """The balanced accuracy of the best single threshold, found with the truth: a bound for any rule."""
    ranks = _ranks(id_scores, ood_scores)
    if ranks.is_empty:
        return math.nan
    # only ID scores need be tried: raising the threshold to the next one gives up no ID sample
    kept = len(ranks.positive) - torch.searchsorted(ranks.positive, ranks.positive)
    rejected = torch.searchsorted(ranks.negative, ranks.positive)
    shares = kept.double() / len(ranks.positive) + rejected.double() / len(ranks.negative)
    return max(1.0, float(shares.max())) / 2  # 1/2 by rejecting everything


class ReliabilityBin(NamedTuple):
    """Samples with much the same p_known: how many, their mean p_known, and the share that is known."""

    samples: int
    p_known: float
    known: float


def reliability(p_known: Float[Tensor, " T"], is_id: Bool[Tensor, " T"], *, bins: int = 10) -> list[ReliabilityBin]:
    """`bins` bins of equal width over [0, 1], the highest closed; nan where a bin is empty."""
    p_known = p_known.detach().double().cpu()
    if not bool(((p_known >= 0) & (p_known <= 1)).all()):
        raise DataError("expected confidences from 0 to 1, got others or NaN; find the samples behind them")
    place = (p_known * bins).long().clamp(max=bins - 1)
    count = torch.bincount(place, minlength=bins)
    columns = (
        torch.zeros(bins, dtype=torch.float64).index_add_(0, place, column) / count
        for column in (p_known, is_id.cpu().double())
    )
    return list(map(ReliabilityBin, count.tolist(), *(column.tolist() for column in columns)))


def calibration_error(found: Sequence[ReliabilityBin]) -> float:
    """The expected calibration error: the mean over samples of |p_known - share known| of their bin."""
    total = sum(one.samples for one in found)
    distance = math.fsum(one.samples * abs(one.p_known - one.known) for one in found if one.samples)
    return distance / total if total else math.nan


def summary(id_scores: Float[Tensor, " P"], ood_scores: Float[Tensor, " N"]) -> dict[str, float]:
    """Every metric by name from one sort of each side.

    >>> summary(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))["auroc"]
    0.875
    """
    ranks = _ranks(id_scores, ood_scores)
    return {
        "auroc": _auroc(ranks),
        "fpr95_id": _fpr(ranks, 0.95),
        "fpr95_ood": _fpr(ranks.for_negatives(), 0.95),
        "aupr_in": _average_precision(ranks),
        "aupr_out": _average_precision(ranks.for_negatives()),
    }


def _ranks(positive: Tensor, negative: Tensor) -> Ranks:
    """The ranks of two sides; numpy sorts them, twice as fast as torch on one core, and that is most of the time."""
    for name, scores in (("first", positive), ("second", negative)):
        if scores.ndim != 1:
            raise DataError(
                f"expected one score per sample on the {name} side, got shape {list(scores.shape)}; use .flatten()"
            )
        if bool(scores.isnan().any()):
            count = int(scores.isnan().sum())
            raise DataError(
                f"expected scores that can be ranked on the {name} side, got {count} NaN; find the samples behind them"
            )
    sides = (torch.from_numpy(np.sort(side.detach().double().cpu().numpy())) for side in (positive, negative))
    return Ranks(*sides)


def _auroc(ranks: Ranks) -> float:
    if ranks.is_empty:
        return math.nan
    below = torch.searchsorted(ranks.negative, ranks.positive)
    not_above = torch.searchsorted(ranks.negative, ranks.positive, right=True)
    wins = int(below.sum() + not_above.sum())  # whole numbers: a tie is one win out of two
    return wins / (2 * len(ranks.positive) * len(ranks.negative))


def _fpr(ranks: Ranks, tpr: float) -> float:
    if ranks.is_empty:
        return math.nan
    total = len(ranks.negative)
    return (total - int(torch.searchsorted(ranks.negative, _threshold(ranks, tpr)))) / total


def _threshold(ranks: Ranks, tpr: float) -> Float[Tensor, ""]:
    """The highest threshold that accepts a share `tpr` of the positive scores."""
    count = len(ranks.positive)
    # the first k with k / count >= tpr as floats compare: ceil(0.95 * count) is one too many for some counts
    accepted = torch.arange(1, count + 1, dtype=torch.float64) / count
    return ranks.positive[count - 1 - int((accepted < tpr).sum())]


def _average_precision(ranks: Ranks) -> float:
    if ranks.is_empty:
        return math.nan
    # each positive sample contributes the precision at its own score; ties share the threshold that takes them all
    found = len(ranks.positive) - torch.searchsorted(ranks.positive, ranks.positive)
    false = len(ranks.negative) - torch.searchsorted(ranks.negative, ranks.positive)
    return float((found / (found + false).double()).mean())
