"""The evidence of the frozen text that an image is known, in nats: a sum of terms, each with its own baseline.

The baseline is what an image related to no name shows: its logits are draws from one normal per side.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.distinction import coverage
from unseen.labels import LabelSpace
from unseen.odds import TextLogits, energy, text_logits


class LogitMoments(NamedTuple):
    """How logits are distributed, of one image or on average: one normal for known names, one for negatives."""

    known_deviation: Float[Tensor, "*T"]
    negative_deviation: Float[Tensor, "*T"]
    gap: Float[Tensor, "*T"]  # mean logit of the known names - mean logit of the negatives


class RowMoments(NamedTuple):
    """Mean and variance of the logits of each image to the names of one side."""

    mean: Float[Tensor, " T"]
    variance: Float[Tensor, " T"]

    @classmethod
    def of(cls, logits: Float[Tensor, "T C"]) -> RowMoments:
        """Both for each row."""
        mean = logits.mean(1)
        return cls(mean, (logits - mean.unsqueeze(1)).square_().mean(1))


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
    """The frozen evidence of each image, and the moments from which its baseline follows."""

    value: Float[Tensor, " T"]
    peak: Float[Tensor, " T"]  # best logit of the known names
    known: RowMoments
    negative: RowMoments
    labels: LabelStatistics

    @property
    def moments(self) -> LogitMoments:
        """The moments of an image related to no name, as far as each image shows them, in float64."""
        known, negative = (RowMoments(*(part.double() for part in side)) for side in (self.known, self.negative))
        mean, deviation = unrelated_normal(*known, self.peak.double(), self.labels.names)
        return LogitMoments(deviation, negative.variance.sqrt(), mean - negative.mean)

    @property
    def clarity(self) -> Float[Tensor, " T"]:
        """The share by which the peak of each image exceeds that of a typical known image; -inf: undefined."""
        typical = self.labels.typical_peak
        return self.peak_z_score / typical - (1 if math.isfinite(typical) else math.inf)

    @property
    def peak_z_score(self) -> Float[Tensor, " T"]:
        """The z-score of the best known name among the logits of the negatives."""
        return (self.peak - self.negative.mean) / self.negative.variance.clamp(min=POOLED.tiny).sqrt()


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

    weight: float = POOLED.contrast

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

    weight: float = POOLED.surprise

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
    """The sum of the terms of each image in units of the margin, in float64."""
    known, negative = map(RowMoments.of, text)
    peak, log_odds = text.known.amax(1), energy(text.known) - energy(text.negative)
    moments = LogitMoments(known.variance.sqrt(), negative.variance.sqrt(), known.mean - negative.mean)
    image = ImageStatistics(log_odds, peak - known.mean, moments)
    value = reduce(operator.add, (term.value(image, labels) for term in terms))
    return Evidence((value / labels.unit).double(), peak, known, negative, labels)


def baseline(moments: LogitMoments, labels: LabelStatistics, terms: Sequence[EvidenceTerm] = TERMS) -> Tensor:
    """The evidence of an image related to no name, in units of the margin."""
    return reduce(operator.add, (term.baseline(moments, labels) for term in terms)) / labels.unit


def chance_contrast(moments: LogitMoments, labels: LabelStatistics) -> Float[Tensor, "*T"]:
    """The expected maximum of K normals: the contrast of an image related to no name."""
    return expected_maximum(labels.names) * moments.known_deviation


def surprise(contrast: Tensor, moments: LogitMoments, names: int) -> Tensor:
    """Contrast^2 / (2 v), v the variance of the names' logits; few names borrow from the negatives."""
    own, borrowed = names * moments.known_deviation**2, POOLED.borrowed * moments.negative_deviation**2
    return contrast**2 / ((own + borrowed) / (names + POOLED.borrowed)).clamp(min=POOLED.tiny) / 2


def typical_energy(count: int, deviation: Tensor) -> Tensor:
    """The typical logsumexp of `count` draws from a normal around 0: Derrida's random energy model.

    The mean, log n + deviation^2 / 2, is typical only while many draws share the mass. From a deviation of
    sqrt(2 log n) on, the largest few hold it all, and the typical value continues along the tangent.
    """
    frozen = math.sqrt(2 * math.log(max(count, 2)))
    return torch.where(deviation < frozen, math.log(count) + deviation.square() / 2, frozen * deviation)


@cache
def expected_maximum(count: int, *, power: int = 1) -> float:
    """The mean of the largest of `count` standard normals, or of its `power`, by quadrature.

    >>> round(expected_maximum(1), 6), round(expected_maximum(2), 6)
    (0.0, 0.56419)
    """
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    below = torch.special.log_ndtr(x) * (count - 1)
    density = count * torch.exp(below - x.square() / 2) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(x**power * density, x))


def unrelated_normal(
    mean: Float[Tensor, " T"], variance: Float[Tensor, " T"], best: Float[Tensor, " T"], count: int
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Mean and deviation of the normal that `count` logits are draws from, estimated from all but the best.

    The right name of a known image is not a draw; among few names it would widen the normal of unrelated images. Both
    moments are corrected for the loss of a best that is a draw.
    """
    if count < POOLED.few_names:
        return mean, variance.sqrt()
    rest = (count * mean - best) / (count - 1)
    square = (count * (variance + mean.square()) - best.square()) / (count - 1) - rest.square()
    first, second = expected_maximum(count), expected_maximum(count, power=2)
    kept = (count - second) / (count - 1) - (count - 2 + second) / (count - 1) ** 2
    deviation = (square.clamp(min=0) / kept).sqrt()
    return rest + first / (count - 1) * deviation, deviation


def label_statistics(labels: LabelSpace, terms: Sequence[EvidenceTerm], *, tau: float) -> LabelStatistics:
    """What the evidence needs of a label space: from its text, and from its examples where there are enough.

    Examples move anchors, and contrast and surprise count less with them. Both change where margins of known images lie
    and how far apart. Spared examples show it. Where there are none, those that taught can: the penalty of residuals is
    so high that their peaks and evidence are nearly those of images that did not.
    """
    found = LabelStatistics(len(labels.names), len(labels.negatives), gap_shrinkage(labels), 0.0)
    if labels.examples is None or len(labels.examples) < POOLED.fewest_examples:  # too few to move names
        return found._replace(typical_peak=typical_peak(labels))
    # those that taught fit better than images of the stream do, the more so the more there are
    shown_by = labels.spared if labels.spared and len(labels.spared) >= POOLED.fewest_examples else labels.examples
    z = shown_by.z[:: math.ceil(len(shown_by) / POOLED.most_examples)].to(labels.id_anchors)
    shown = evidence(text_logits(labels, z, tau=tau), found, terms)
    unit = measured_unit(shown.value, coverage(labels.examples, len(labels.names)))
    return found._replace(typical_peak=float(shown.peak_z_score.double().mean()), unit=unit)


def measured_unit(value: Float[Tensor, " n"], coverage: float = 1.0) -> float:
    """How many nats of evidence make one of margin, from the evidence of examples.

    With it margins of known images deviate as they do without examples. `coverage` is how much distinction counts.
    """
    value, start = value.double(), POOLED.unit_start
    spread = float((value - value.mean()).square().sum())
    deviation = math.sqrt((spread + start * POOLED.evidence_deviation**2) / (len(value) - 1 + start))
    return (1 + POOLED.distinction_share * coverage) * deviation / POOLED.evidence_deviation


def typical_peak(labels: LabelSpace) -> float:
    """The z-score that the right name of a known image has among the negatives, on average, from the text only.

    It grows with the z-score of a name itself among the negatives; among few names the best has less of a choice. Image
    quality hardly changes it: a poor image is less like its name, and in the same measure less like any other. The
    constants are a fit to 21 label spaces with CLIP's text: averages deviate by 0.24 from it, in 22 others by 0.29.
    Infinity, so that no image is clear, where separation lies beyond those of the fit, where text and images come from
    two models, as with the offline text tower, whose peaks follow from its own fit (1.6 to 4.5 where 5 would be
    typical). Examples move anchors, which raises the peaks of all images, and show the typical peak.
    """
    low, high = POOLED.fitted_separations
    if not (labels.has_own_text and low <= labels.separation <= high):
        return math.inf
    return POOLED.peak_at_one + POOLED.peak_per_log * math.log(labels.separation) - POOLED.peak_lost / len(labels.names)


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
