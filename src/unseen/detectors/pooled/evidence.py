"""How much the frozen text speaks for an image being known, in nats: a sum of terms, each with its own baseline."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.pooled.baseline import expected_maximum, typical_energy, unrelated_normal
from unseen.labels import LabelSpace
from unseen.odds import energy, in_cache
from unseen.text import TextLogits

BORROWED = 10  # negatives whose variance is added where the names are too few to have a variance of their own
PEAK_AT_ONE, PEAK_PER_LOG, PEAK_LOST = 1.6, 1.75, 2.0  # of the right name, by the separation and number of names
FITTED = 2.5, 12.0  # separations in which these constants hold
TINY = 1e-9  # floor of a variance: every name, or every image, is the same


class LogitMoments(NamedTuple):
    """How logits are distributed, of one image or on average: one normal for known names, one for negatives."""

    known_deviation: Float[Tensor, "*T"]
    negative_deviation: Float[Tensor, "*T"]
    gap: Float[Tensor, "*T"]  # mean logit of the known names - mean logit of the negatives


class RowMoments(NamedTuple):
    """Mean and variance of the logits of each image to the names of one side."""

    mean: Float[Tensor, " T"]
    variance: Float[Tensor, " T"]


class LabelStatistics(NamedTuple):
    """What the terms need of a label space."""

    names: int
    negatives: int
    gap_shrinkage: float
    typical_peak: float  # z-score of the right name of a known image among the logits of the negatives


class ImageStatistics(NamedTuple):
    """What the terms need of each image."""

    log_odds: Float[Tensor, " T"]  # of the known names against the negatives, Eq. 3
    contrast: Float[Tensor, " T"]  # best - mean logit of the known names
    moments: LogitMoments


class Evidence(NamedTuple):
    """The frozen evidence of each image, and the moments from which its baseline follows."""

    value: Float[Tensor, " T"]
    peak: Float[Tensor, " T"]  # best logit of the known names
    known: RowMoments
    negative: RowMoments
    labels: LabelStatistics

    @property
    def moments(self) -> LogitMoments:
        """Return the moments of an image related to no name, as far as each image shows them."""
        known, negative = (RowMoments(*(part.double() for part in side)) for side in (self.known, self.negative))
        mean, deviation = unrelated_normal(*known, self.peak.double(), self.labels.names)
        return LogitMoments(deviation, negative.variance.sqrt(), mean - negative.mean)

    @property
    def clarity(self) -> Float[Tensor, " T"]:
        """Return the z-score of the best known name among the negatives, less that of the right name of an image."""
        deviation = self.negative.variance.clamp(min=TINY).sqrt()
        return (self.peak - self.negative.mean) / deviation - self.labels.typical_peak


class EvidenceTerm(ABC):
    """One summand of the evidence."""

    @abstractmethod
    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """Return the term of each image."""

    @abstractmethod
    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """Return the typical term of an image related to no name, whose logits have these moments."""


class LogOdds(EvidenceTerm):
    """NegLabel's log-odds (Eq. 3), less the share `gap_shrinkage` of the distance between the two mean logits.

    That share tells one cloud of names from the other, not a known image from an unknown one.
    """

    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """Return the log-odds of each image."""
        return image.log_odds - labels.gap_shrinkage * image.moments.gap

    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """Return the difference of two random energies, and what is left of the gap."""
        known = typical_energy(labels.names, moments.known_deviation)
        odds = known - typical_energy(labels.negatives, moments.negative_deviation)
        return odds + (1 - labels.gap_shrinkage) * moments.gap


@dataclass(frozen=True)
class Contrast(EvidenceTerm):
    """Best - mean logit of the known names, what MCM at T = 1 ranks by, times `weight`."""

    weight: float = 0.5

    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """Return the weighted contrast of each image."""
        return self.weight * image.contrast

    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """Return the weighted contrast that chance gives."""
        return self.weight * chance_contrast(moments, labels)


@dataclass(frozen=True)
class Surprise(EvidenceTerm):
    """The nats by which it is improbable that one of K unrelated names has so large a contrast, times `weight`."""

    weight: float = 0.25

    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """Return the weighted surprise of each image."""
        return self.weight * surprise(image.contrast, image.moments, labels.names)

    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """Return the weighted surprise of the contrast that chance gives."""
        return self.weight * surprise(chance_contrast(moments, labels), moments, labels.names)


TERMS: tuple[EvidenceTerm, ...] = (LogOdds(), Contrast(), Surprise())
EXAMPLE_TERMS: tuple[EvidenceTerm, ...] = (LogOdds(), Contrast(0.25), Surprise(0.125))  # where examples moved anchors


def evidence(text: TextLogits, labels: LabelStatistics, terms: Sequence[EvidenceTerm] = TERMS) -> Evidence:
    """Return f, the sum of the terms of each image, in float64."""
    known, negative = (mean_and_variance(part) for part in text)
    peak, log_odds = text.known.amax(1), energy(text.known) - energy(text.negative)
    moments = LogitMoments(known.variance.sqrt(), negative.variance.sqrt(), known.mean - negative.mean)
    image = ImageStatistics(log_odds, peak - known.mean, moments)
    value = reduce(torch.add, (term.value(image, labels) for term in terms))
    return Evidence(value.double(), peak, known, negative, labels)


def baseline(moments: LogitMoments, labels: LabelStatistics, terms: Sequence[EvidenceTerm] = TERMS) -> Tensor:
    """Return the evidence of an image related to no name."""
    return reduce(torch.add, (term.baseline(moments, labels) for term in terms))


def chance_contrast(moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
    """Return the expected maximum of K normals: the contrast of an image related to no name."""
    return expected_maximum(labels.names) * moments.known_deviation


def surprise(contrast: Tensor, moments: LogitMoments, names: int) -> Tensor:
    """Return contrast^2 / (2 v), v the variance of the names' logits; few names borrow from the negatives."""
    own, borrowed = names * moments.known_deviation.square(), BORROWED * moments.negative_deviation.square()
    variance = (own + borrowed) / (names + BORROWED)
    return contrast.square() / variance.clamp(min=TINY) / 2


def mean_and_variance(logits: Float[Tensor, "T C"]) -> RowMoments:
    """Return both for each row, as many rows at a time as fit in the cache."""
    parts = [_moments_of(logits[rows]) for rows in in_cache(logits)] or [_moments_of(logits)]
    return parts[0] if len(parts) == 1 else RowMoments(*map(torch.cat, zip(*parts, strict=True)))


def _moments_of(logits: Float[Tensor, "T C"]) -> RowMoments:
    mean = logits.mean(1, keepdim=True)
    return RowMoments(mean.squeeze(1), (logits - mean).square_().mean(1))


def typical_peak(labels: LabelSpace) -> float:
    """Return the z-score that the right name of a known image has among the negatives, on average, from the text only.

    It grows with the z-score of a name itself among the negatives; among few names the best has less of a choice. Image
    quality hardly changes it: a poor image is less like its name, and in the same measure less like any other. The
    constants are a fit to 13 label spaces, in which the average lay within 0.3 of it, with one exception (0.4 below).
    Infinity, so that no image is clear, where separation lies beyond those of the fit, as with the offline text tower.
    """
    if not FITTED[0] <= labels.separation <= FITTED[1]:
        return math.inf
    return PEAK_AT_ONE + PEAK_PER_LOG * math.log(labels.separation) - PEAK_LOST / len(labels.names)


def gap_shrinkage(labels: LabelSpace) -> float:
    """Return how much of the gap between the mean name and the mean negative is not due to chance, from 0 to 1.

    James-Stein shrinkage, from the text only: 0 where the gap is what K - 1 names and L negatives drawn from one cloud
    would show (one name is left out: it may be the right one), near 1 where they come from two clouds.
    """
    known, negative = labels.id_anchors.double(), labels.ood_anchors.double()
    if len(known) == 1:
        return 0.0
    gap = (known.mean(0) - negative.mean(0)).square().sum()
    within = sum((rows - rows.mean(0)).square().sum() for rows in (known, negative)) / (len(known) + len(negative) - 2)
    chance = within * (1 / (len(known) - 1) + 1 / len(negative))
    return float((1 - chance / gap).clamp(min=0)) if gap > 0 else 0.0
