"""The weight of the pool, from what a stream has shown before each sample; no label is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.pooled.regression import Predictions

NORMAL_BIMODALITY = 1 / 3  # of a normal distribution; two points, however unequal, have 1
TINY = 1e-9


class PredictionRecord(NamedTuple):
    """Sums over a stream, of what each sample showed before the pool learned from it."""

    errors: Float[Tensor, "*T 2"]  # squared errors of the level m, and of the pool's prediction u
    evidence_powers: Float[Tensor, "*T 4"]  # f, f^2, f^3, f^4
    predicted_powers: Float[Tensor, "*T 4"]  # the same of u

    @classmethod
    def empty(cls) -> PredictionRecord:
        """Return the sums before the first sample."""
        return cls(*(torch.zeros(size, dtype=torch.float64) for size in (2, 4, 4)))


class PoolWeights(NamedTuple):
    """How the pool enters the score."""

    level: Float[Tensor, "*T"]  # m, mean evidence so far
    trust: Float[Tensor, "*T"]  # weight of u against m within the pool, from 0 to 1
    pool: Float[Tensor, "*T"]  # weight of the pool against the evidence f of the sample itself, from 0 to 1


def updated_record(
    record: PredictionRecord, seen: Int[Tensor, " T"], f: Float[Tensor, " T"], met: Predictions
) -> tuple[PredictionRecord, PredictionRecord]:
    """Return the sums before each sample of a block, and after the last; `seen` counts the samples before each.

    Before its first sample a stream has no level and no prediction: the first counts as evidence only.
    """
    level = (record.evidence_powers[0] + exclusive_cumsum(f)) / seen.clamp(min=1)
    level_error = (f - level).square() * seen / (seen + 1)
    pool_error = (f - met.predicted).square() / (1 + met.leverage)
    later = (seen > 0).unsqueeze(1)
    errors = later * torch.stack([level_error, pool_error], dim=1)
    gained = PredictionRecord(errors, powers(f), later * powers(met.predicted))
    before = (total + exclusive_cumsum(part) for total, part in zip(record, gained, strict=True))
    after = (total + part.sum(0) for total, part in zip(record, gained, strict=True))
    return PredictionRecord(*before), PredictionRecord(*after)


def kept_bimodality(own: Tensor, pooled: Tensor) -> Tensor:
    """Return 1 where the predictions are at least as bimodal as the evidence, else less: the pool must not blur."""
    return (pooled / own).clamp(max=1)


def pool_weights(
    record: PredictionRecord,
    seen: Int[Tensor, "*T"],
    *,
    prior: float,
    least: float,
    half_explained: float,
    kept: Callable[[Tensor, Tensor], Tensor] = kept_bimodality,
) -> PoolWeights:
    """Return the weights that follow from a record; `prior` samples that showed nothing are counted too.

    The pool has the weight `least`, up to twice as much where its predictions fall into two groups. Its prediction is
    trusted by half where it explains a share `half_explained` of the variance, times `kept` of both bimodalities.
    """
    level = record.evidence_powers[..., 0] / seen.clamp(min=1)
    level_error, pool_error = record.errors.unbind(-1)
    counted = seen / (seen + prior)
    explained = counted * torch.where(level_error > 0, 1 - pool_error / level_error, 0.0).clamp(min=0)
    own = bimodality(record.evidence_powers, seen, prior)
    pooled = bimodality(record.predicted_powers, (seen - 1).clamp(min=0), prior)
    trust = kept(own, pooled) * explained.square() / (explained.square() + half_explained**2)
    separated = ((pooled - NORMAL_BIMODALITY) / (1 - NORMAL_BIMODALITY)).clamp(0, 1)
    return PoolWeights(level, trust, counted * (least * (1 + trust * separated.sqrt())).clamp(max=1))


def bimodality(sums: Float[Tensor, "*T 4"], count: Int[Tensor, "*T"], prior: float) -> Float[Tensor, "*T"]:
    """Return Sarle's coefficient of bimodality, (skewness^2 + 1) / kurtosis, from sums of powers.

    It is 1/3 for a normal and 1 for two points of any weights. `prior` samples of a normal are counted too.
    """
    mean, second, third, fourth = (sums / count.clamp(min=1).unsqueeze(-1)).unbind(-1)
    variance = torch.maximum(second - mean.square(), 1e-6 * second + TINY)  # below it, powers only show their rounding
    skew = (third - 3 * mean * second + 2 * mean**3) / variance**1.5
    kurtosis = (fourth - 4 * mean * third + 6 * mean.square() * second - 3 * mean**4) / variance.square()
    counted = torch.where(count > 4, count / (count + prior), 0.0)  # four moments of four samples say nothing
    return ((counted * skew).square() + 1) / (counted * kurtosis + 3 * (1 - counted)).clamp(min=1)


def log_leverage_ratio(leverage: Tensor, seen: Tensor, parameters: Tensor) -> Tensor:
    """Return log(h / mean h); the mean leverage is p / n, with p the parameters in use."""
    return torch.where(seen > 0, torch.log(leverage * seen / parameters), 0.0)


def extrapolation_guard(ratio: Tensor, squares: Tensor, seen: Tensor, *, limit: float) -> Tensor:
    """Return a factor from 1 down to 0: a normal tail where the log leverage ratio is beyond `limit` deviations.

    `squares` is the sum of squared ratios so far. The prior deviation makes twice the mean leverage the limit.
    """
    variance = ((math.log(2) / limit) ** 2 + squares) / (1 + seen)
    return torch.exp(-0.5 * (ratio.clamp(min=0).square() / variance - limit**2).clamp(min=0))


def powers(values: Float[Tensor, " T"]) -> Float[Tensor, "T 4"]:
    """Return the first four powers of each value."""
    return torch.stack([values**power for power in (1, 2, 3, 4)], dim=1)


def exclusive_cumsum(values: Tensor) -> Tensor:
    """Return for each row the sum of the rows before it."""
    return values.cumsum(0) - values
