"""The detector: scores from an image's own evidence and from that of images that look like it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.detectors.merging import MergeRule, added, merged_regression
from unseen.detectors.pooled.evidence import (
    TERMS,
    Evidence,
    EvidenceTerm,
    LabelStatistics,
    LogitMoments,
    baseline,
    evidence,
    gap_shrinkage,
)
from unseen.detectors.pooled.regression import Regression, sequential_regression, with_intercept
from unseen.detectors.pooled.weights import (
    PoolWeights,
    PredictionRecord,
    exclusive_cumsum,
    extrapolation_guard,
    log_leverage_ratio,
    pool_weights,
    updated_record,
)
from unseen.detectors.state import map_state
from unseen.text import TextLogits, text_logits

FEW_VOTES = 5  # fewer say little about how popular a name is: names differ by that much by accident


class PooledState(NamedTuple):
    """Everything the detector has learned; all but the regression are sums over the stream."""

    seen: Int[Tensor, ""]
    regression: Regression
    record: PredictionRecord
    leverage_squares: Float[Tensor, ""]  # squared log leverage ratios
    moments: LogitMoments
    votes: Float[Tensor, " K"]


class Pooled(NamedTuple):
    """The prediction of the pool for each sample, and its weights."""

    predicted: Float[Tensor, " T"]
    leverage: Float[Tensor, " T"]
    guard: Float[Tensor, " T"]
    weights: PoolWeights


@dataclass(frozen=True, eq=False)
class PooledEvidence(Detector[PooledState]):
    """Score by a sample's own evidence and the evidence of similar samples, learned by Bayesian linear regression.

    Nothing is routed, so a stream of one kind only, or one that begins so, is no special case. The pool gets more
    weight the better it predicts evidence and the more clearly its predictions fall into two groups; where it would
    have to extrapolate, a sample keeps its own evidence. For an ablation, set `terms` in a subclass.
    """

    tau: float = 0.01
    pool_weight: float = 0.5  # weight of the pool; up to twice as much where its predictions fall into two groups
    half_explained: float = 0.1  # share of the variance of the evidence that the pool must explain to be half trusted
    leverage_limit: float = 2.5  # standard deviations of log leverage beyond which the pool is not used
    popularity_discount: float = 0.25  # how much of a name's popularity is divided out when naming

    name: ClassVar[str] = "pooled"
    terms: ClassVar[tuple[EvidenceTerm, ...]] = TERMS
    needs_negatives: ClassVar[bool] = True
    derives_baseline: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(tau=self.tau, leverage_limit=self.leverage_limit, half_explained=self.half_explained)
        in_range("pool_weight", self.pool_weight, 0, 1)
        in_range("popularity_discount", self.popularity_discount, 0, 1)

    def start(self) -> PooledState:
        """Return the state before the first sample."""
        zero, votes = (torch.zeros(shape, dtype=torch.float64) for shape in ((), (len(self.labels.names),)))
        moments = LogitMoments(zero, zero, zero)
        prior = Regression.prior(self.labels.dim, self.prior_samples)
        fresh = PooledState(zero.long(), prior, PredictionRecord.empty(), zero, moments, votes)
        return map_state(lambda part: part.to(self.labels.id_anchors.device), fresh)

    def read(self, state: PooledState, z: Float[Tensor, "T d"]) -> Reading:
        """Score each sample of a block as if it came next."""
        text = text_logits(self.labels, z, tau=self.tau)
        own = self.evidence(text)
        predicted, leverage = state.regression.predict(with_intercept(z))
        parameters = self._parameters(state.regression.slope_variance)
        ratio = log_leverage_ratio(leverage, state.seen, parameters)
        guard = extrapolation_guard(ratio, state.leverage_squares, state.seen, limit=self.leverage_limit)
        pooled = Pooled(predicted, leverage, guard, self._weights(state.record, state.seen))
        moments = map_state(lambda total, one: (total + one) / (state.seen + 1), state.moments, own.moments)
        score, base = self._combined(own.value, self.baseline(moments), pooled)
        return Reading.frozen(score.to(z.dtype), self._named(text, state.votes), base.to(z.dtype))

    def learn(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[Reading, PooledState]:
        """Score each sample of a block before the pool learns from it, in arrival order."""
        text = text_logits(self.labels, z, tau=self.tau)
        own, votes = self.evidence(text), confident_votes(text)
        seen = state.seen + torch.arange(len(z), device=z.device)
        met, regression = sequential_regression(with_intercept(z), own.value, state.regression)
        slope_variance = state.regression.slope_variance - exclusive_cumsum(met.slope_reduction)
        ratio = log_leverage_ratio(met.leverage, seen, self._parameters(slope_variance))
        squares = state.leverage_squares + exclusive_cumsum(ratio.square())
        guard = extrapolation_guard(ratio, squares, seen, limit=self.leverage_limit)
        record, end = updated_record(state.record, seen, own.value, met)
        pooled = Pooled(met.predicted, met.leverage, guard, self._weights(record, seen))
        moments = map_state(lambda total, one: (total + one.cumsum(0)) / (seen + 1), state.moments, own.moments)
        score, base = self._combined(own.value, self.baseline(moments), pooled)
        named = self._named(text, state.votes + exclusive_cumsum(votes))
        reading = Reading(score.to(z.dtype), named, met.innovation.sign().to(torch.int8), base.to(z.dtype))
        return reading, PooledState(
            state.seen + len(z),
            regression,
            end,
            state.leverage_squares + ratio.square().sum(),
            map_state(lambda total, one: total + one.sum(), state.moments, own.moments),
            state.votes + votes.sum(0),
        )

    def _merged(self, start: PooledState, ends: Sequence[PooledState], rule: MergeRule) -> PooledState:
        """Return the state of all parts: the regression and most sums are what one observer of them all would have.

        Only leverage_squares and the errors and predicted powers of the record differ: each part met its own terms.
        """
        totals = map_state(lambda first, *rest: added(first, rest), start, *ends)
        merged = merged_regression(start.regression, [end.regression for end in ends])
        return totals._replace(regression=Regression(*merged))

    @property
    def prior_samples(self) -> float:
        """Return sqrt(d): the prior precision of the slopes, and how many samples without effect every count adds."""
        return math.sqrt(self.labels.dim)

    @cached_property
    def gap_shrinkage(self) -> float:
        """Return how much of the gap between the mean name and the mean negative is not due to chance."""
        return gap_shrinkage(self.labels)

    @cached_property
    def label_statistics(self) -> LabelStatistics:
        """Return what the evidence needs of the label space."""
        return LabelStatistics(len(self.labels.names), len(self.labels.negatives), self.gap_shrinkage)

    def evidence(self, text: TextLogits) -> Evidence:
        """Return the frozen evidence of each image."""
        return evidence(text, self.label_statistics, self.terms)

    def baseline(self, moments: LogitMoments) -> Tensor:
        """Return the frozen evidence of an image related to no name."""
        return baseline(moments, self.label_statistics, self.terms)

    def _parameters(self, slope_variance: Tensor) -> Tensor:
        """Return how many parameters of the regression the samples so far have determined."""
        return 1 + self.labels.dim - self.prior_samples * slope_variance

    def _weights(self, record: PredictionRecord, seen: Tensor) -> PoolWeights:
        prior, half = self.prior_samples, self.half_explained
        return pool_weights(record, seen, prior=prior, least=self.pool_weight, half_explained=half)

    def _combined(self, own: Tensor, base: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:
        """Return score and baseline; the baseline, too, is drawn to the level of the stream."""
        level, trust = pooled.weights.level, pooled.weights.trust / (1 + pooled.leverage)
        weight = pooled.guard * pooled.weights.pool
        target = level + trust * (pooled.predicted - level)
        return own + weight * (target - own), base + weight * (1 - trust) * (level - base)

    def _named(self, text: TextLogits, votes: Tensor) -> Tensor:
        return (text.known - self.popularity_discount * torch.log1p(votes / FEW_VOTES)).argmax(1)


def confident_votes(text: TextLogits) -> Float[Tensor, "T K"]:
    """Return each sample's vote: the posterior of the known name that has more than half of it, else nothing."""
    posterior = text.known.softmax(1)
    return (posterior * (posterior > 0.5)).double()
