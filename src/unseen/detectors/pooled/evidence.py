"""The evidence of the frozen text that an image is known, in nats: a sum of terms, each with its own baseline."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.pooled.baseline import expected_maximum, typical_energy, unrelated_normal
from unseen.labels import LabelSpace
from unseen.odds import cache_sized_ranges, energy
from unseen.text import TextLogits

BORROWED = 10  # negatives whose variance is added where the names are too few to have a variance of their own
PEAK_AT_ONE, PEAK_PER_LOG, PEAK_LOST = 2.45, 1.15, 2.0  # of the right name, by the separation and number of names
FITTED = 2.0, 12.0  # separations in which these constants hold
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
    unit: float = 1.0  # nats of evidence in one of margin; examples show it


class ImageStatistics(NamedTuple):
    """What the terms need of each image."""

    log_odds: Float[Tensor, " T"]  # of the known names against the negatives, Eq. 3
    contrast: Float[Tensor, " T"]  # best - mean logit of the known names
    moments: LogitMoments


class Evidence(NamedTuple):
    """The frozen evidence of each image, and the moments from which its baseline follows; NumPy for few images."""

    value: Float[Tensor, " T"]
    peak: Float[Tensor, " T"]  # best logit of the known names
    known: RowMoments
    negative: RowMoments
    labels: LabelStatistics

    @property
    def moments(self) -> LogitMoments:
        """The moments of an image related to no name, as far as each image shows them."""
        return unrelated_moments(self.known, self.negative, self.peak, self.labels.names)

    @property
    def clarity(self) -> Float[Tensor, " T"]:
        """The share by which the peak of each image exceeds that of a typical known image; -inf: undefined."""
        typical = self.labels.typical_peak
        return self.peak_z_score / typical - (1 if math.isfinite(typical) else math.inf)

    @property
    def peak_z_score(self) -> Float[Tensor, " T"]:
        """The z-score of the best known name among the logits of the negatives."""
        return (self.peak - self.negative.mean) / at_least(TINY, self.negative.variance) ** 0.5


class EvidenceTerm(ABC):
    """One summand of the evidence."""

    @abstractmethod
    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """The term of each image."""

    @abstractmethod
    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """The typical term of an image related to no name, whose logits have these moments."""

    def with_examples(self, per_name: float) -> EvidenceTerm:
        """The term where names have so many examples each, on average."""
        return self


class LogOdds(EvidenceTerm):
    """NegLabel's log-odds (Eq. 3), less the share `gap_shrinkage` of the distance between the two mean logits.

    That share separates the known names from the negatives as text, not known images from unknown ones.
    """

    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """The log-odds of each image."""
        return image.log_odds - labels.gap_shrinkage * image.moments.gap

    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """The difference of two random energies, and what is left of the gap."""
        known = typical_energy(labels.names, moments.known_deviation)
        odds = known - typical_energy(labels.negatives, moments.negative_deviation)
        return odds + (1 - labels.gap_shrinkage) * moments.gap


@dataclass(frozen=True)
class Contrast(EvidenceTerm):
    """Best - mean logit of the known names, what MCM at T = 1 ranks by, times `weight`."""

    weight: float = 0.5

    def with_examples(self, per_name: float) -> Contrast:
        """The term with less weight: anchors that fit images need it less."""
        return Contrast(self.weight / (1 + per_name))

    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """The weighted contrast of each image."""
        return self.weight * image.contrast

    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """The weighted contrast that chance gives."""
        return self.weight * chance_contrast(moments, labels)


@dataclass(frozen=True)
class Surprise(EvidenceTerm):
    """The nats by which it is improbable that one of K unrelated names has so large a contrast, times `weight`."""

    weight: float = 0.25

    def with_examples(self, per_name: float) -> Surprise:
        """The term with less weight: anchors that fit images need it less."""
        return Surprise(self.weight / (1 + per_name))

    def value(self, image: ImageStatistics, labels: LabelStatistics) -> Float[Tensor, " T"]:
        """The weighted surprise of each image."""
        return self.weight * surprise(image.contrast, image.moments, labels.names)

    def baseline(self, moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
        """The weighted surprise of the contrast that chance gives."""
        return self.weight * surprise(chance_contrast(moments, labels), moments, labels.names)


TERMS: tuple[EvidenceTerm, ...] = (LogOdds(), Contrast(), Surprise())


def evidence(text: TextLogits, labels: LabelStatistics, terms: Sequence[EvidenceTerm] = TERMS) -> Evidence:
    """F, the sum of the terms of each image in units of the margin, in float64."""
    known, negative = (mean_and_variance(part) for part in text)
    log_odds = energy(text.known) - energy(text.negative)
    found = evidence_of(known, negative, text.known.amax(1), log_odds, labels, terms)
    return found._replace(value=found.value.double())


def evidence_of(
    known: RowMoments,
    negative: RowMoments,
    peak: Float[Tensor, " T"],
    log_odds: Float[Tensor, " T"],
    labels: LabelStatistics,
    terms: Sequence[EvidenceTerm],
) -> Evidence:
    """The evidence that follows from moments, peak and log-odds of the logits; NumPy for few images."""
    moments = LogitMoments(known.variance**0.5, negative.variance**0.5, known.mean - negative.mean)
    image = ImageStatistics(log_odds, peak - known.mean, moments)
    value = reduce(operator.add, (term.value(image, labels) for term in terms))
    return Evidence(value / labels.unit, peak, known, negative, labels)


def unrelated_moments(known: RowMoments, negative: RowMoments, peak: Float[Tensor, " T"], names: int) -> LogitMoments:
    """The moments of an image related to no name, as far as each image shows them, in float64."""
    known, negative = (RowMoments(*(part.double() for part in side)) for side in (known, negative))
    mean, deviation = unrelated_normal(*known, peak.double(), names)
    return LogitMoments(deviation, negative.variance.sqrt(), mean - negative.mean)


def baseline(moments: LogitMoments, labels: LabelStatistics, terms: Sequence[EvidenceTerm] = TERMS) -> Tensor:
    """The evidence of an image related to no name, in units of the margin."""
    return reduce(torch.add, (term.baseline(moments, labels) for term in terms)) / labels.unit


def chance_contrast(moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
    """The expected maximum of K normals: the contrast of an image related to no name."""
    return expected_maximum(labels.names) * moments.known_deviation


def surprise(contrast: Tensor, moments: LogitMoments, names: int) -> Tensor:
    """Contrast^2 / (2 v), v the variance of the names' logits; few names borrow from the negatives."""
    own, borrowed = names * moments.known_deviation**2, BORROWED * moments.negative_deviation**2
    return contrast**2 / at_least(TINY, (own + borrowed) / (names + BORROWED)) / 2


def at_least(least: float, value: Tensor) -> Tensor:
    """A tensor, an array or a number, but nothing below `least`."""
    if isinstance(value, float):
        return max(value, least)
    return value.clamp(min=least) if isinstance(value, Tensor) else np.maximum(value, least)


def mean_and_variance(logits: Float[Tensor, "T C"]) -> RowMoments:
    """Both for each row, as many rows at a time as fit in the cache."""
    parts = [_moments_of(logits[rows]) for rows in cache_sized_ranges(logits)] or [_moments_of(logits)]
    return parts[0] if len(parts) == 1 else RowMoments(*map(torch.cat, zip(*parts, strict=True)))


def _moments_of(logits: Float[Tensor, "T C"]) -> RowMoments:
    mean = logits.mean(1, keepdim=True)
    return RowMoments(mean.squeeze(1), (logits - mean).square_().mean(1))


def typical_peak(labels: LabelSpace) -> float:
    """The z-score that the right name of a known image has among the negatives, on average, from the text only.

    It grows with the z-score of a name itself among the negatives; among few names the best has less of a choice. Image
    quality hardly changes it: a poor image is less like its name, and in the same measure less like any other. The
    constants are a fit to 21 label spaces with CLIP's text: averages deviate by 0.24 from it, in 22 others by 0.29.
    Infinity, so that no image is clear, where separation lies beyond those of the fit, where text and images come from
    two models, as with the offline text tower, whose peaks follow from its own fit (1.6 to 4.5 where 5 would be
    typical). Examples move anchors, which raises the peaks of all images, and show the typical peak
    (`example_statistics`).
    """
    if not (labels.has_own_text and FITTED[0] <= labels.separation <= FITTED[1]):
        return math.inf
    return PEAK_AT_ONE + PEAK_PER_LOG * math.log(labels.separation) - PEAK_LOST / len(labels.names)


def gap_shrinkage(labels: LabelSpace) -> float:
    """How much of the gap between the mean name and the mean negative is not due to chance, from 0 to 1.

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
