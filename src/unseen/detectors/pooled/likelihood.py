"""What the pooled prediction adds to a margin: a likelihood ratio that may lower it by much, and raises it by little.

Unknown images may look like known ones (near unknowns), so a prediction on the known side proves little, and one on the
unknown side much: log N1(u) - log((1 - p) N0(u) + p N1(u)) is at most log(1 / p).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.state import map_state

Array = np.ndarray[Any, Any]
NEAR_SHARE = 0.1  # p: share of unknown images that look like known ones
HALF_SAMPLES = 16.0  # effective images after which the pool counts half; also what the start of a moment is worth
LARGEST_RATIO = 50.0
NORMAL_BIMODALITY = 1 / 3  # Sarle's coefficient of a normal; two points have 1
TINY = 1e-4


class PredictionSums(NamedTuple):
    """What predictions u were, each made before its own image was learned."""

    sides: Float[Tensor, "2 3"]  # weight, u and u^2 per side; an image weighs its place in the stream
    powers: Float[Tensor, "5"]  # number and first four powers

    @classmethod
    def empty(cls) -> PredictionSums:
        """The sums before the first prediction."""
        return cls(torch.zeros(2, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))

    def updated(
        self, weight: Float[Tensor, "2 B"], predicted: Float[Tensor, " B"], seen: int | Int[Tensor, ""]
    ) -> PredictionSums:
        """The sums after more predictions; earlier ones, of a younger direction, weigh less."""
        return map_state(torch.clone, self).add_(weight, predicted, seen)

    def add_(
        self, weight: Float[Tensor, "2 B"], predicted: Float[Tensor, " B"], seen: int | Int[Tensor, ""]
    ) -> PredictionSums:
        """Add predictions to these sums, which must be the caller's own."""
        powers = torch.stack([predicted**power for power in range(5)])
        self.sides.add_((seen + len(predicted)) * (weight @ powers[:3].T))
        self.powers.add_(powers.sum(1))
        return self


def bimodality(powers: Float[Tensor, "5"]) -> Float[Tensor, ""]:
    """Sarle's coefficient, (skewness^2 + 1) / kurtosis, from 0 for a normal to 1 for two points."""
    mean, second, third, fourth = (powers[1:] / powers[0].clamp(min=1)).unbind()
    variance = torch.maximum(second - mean.square(), 1e-6 * second + TINY)
    skew = (third - 3 * mean * second + 2 * mean**3) / variance**1.5
    kurtosis = (fourth - 4 * mean * third + 6 * mean.square() * second - 3 * mean**4) / variance.square()
    excess = (skew.square() + 1) / kurtosis.clamp(min=1) - NORMAL_BIMODALITY
    return torch.where(powers[0] > 4, excess / (1 - NORMAL_BIMODALITY), 0.0).clamp(0, 1)


class Likelihood(NamedTuple):
    """A log ratio of two normals that is linear in u, because they share their variance."""

    middle: Float[Tensor, ""]
    rate: Float[Tensor, ""]  # nats per nat of u, with the weight the pool has earned

    @classmethod
    def none(cls, like: Tensor) -> Likelihood:
        """The likelihood before the first prediction, of the type of `like`."""
        return cls(like.new_zeros(()), like.new_zeros(()))

    def log_ratio(self, predicted: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """What the prediction adds to the margin of each image."""
        ratio = (self.rate * (predicted - self.middle)).clamp(-LARGEST_RATIO, LARGEST_RATIO)
        near, far = math.log(NEAR_SHARE), math.log1p(-NEAR_SHARE)
        return -torch.logaddexp(far - ratio, torch.full_like(ratio, near))


def few_log_ratios(predicted: Array, middle: float, rate: float) -> Array:
    """`Likelihood.log_ratio` of few images."""
    ratio = np.minimum(np.maximum(rate * (predicted - middle), -LARGEST_RATIO), LARGEST_RATIO)  # np.clip is slow
    return -np.log((1 - NEAR_SHARE) * np.exp(-ratio) + NEAR_SHARE)


def fit_likelihood(sums: PredictionSums, effective: Float[Tensor, ""], seen: int | Int[Tensor, ""]) -> Likelihood:
    """The likelihood ratio of predictions, weighted by how many there were and how clearly they fall apart.

    Sides are assigned by the margin of the image itself. Where images that look alike only share how easy they are,
    predictions have one mode, Sarle's coefficient of bimodality is 0, and predictions add nothing.
    """
    sides = sums.sides / seen  # the latest image weighs 1
    weight, first, second = sides.unbind(1)
    total = sides.sum(0)
    overall = total[1] / total[0].clamp(min=TINY)
    spread = (total[2] / total[0].clamp(min=TINY) - overall.square()).clamp(min=TINY)
    mean = (first + HALF_SAMPLES * overall) / (weight + HALF_SAMPLES)
    square = (second + HALF_SAMPLES * (spread + overall.square())) / (weight + HALF_SAMPLES)
    variance = (square - mean.square()).clamp(min=TINY).mean()
    earned = effective / (effective + HALF_SAMPLES) * bimodality(sums.powers).sqrt()
    return Likelihood(mean.mean(), earned * (mean[1] - mean[0]) / variance)
