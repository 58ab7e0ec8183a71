"""What examples show of all known images: how well names fit them, and by how much the evidence of them differs.

Examples move anchors, and contrast and surprise count less with them. Both change where margins of known images lie and
how far apart, which threshold, sides and p_known must know. Spared examples show it. Where there are none, a few of
each name that taught can: the penalty of residuals is so high that their peaks and evidence are nearly those of images
that did not. Fewer than FEWEST move no name, so that the statistics of the text are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.pooled.distinction import coverage
from unseen.detectors.pooled.evidence import (
    Evidence,
    EvidenceTerm,
    LabelStatistics,
    evidence,
    gap_shrinkage,
    typical_peak,
)
from unseen.labels import LabelSpace
from unseen.text import text_logits

FEWEST = 8  # examples; the mean peak of fewer is off by more than a third of the deviation of a peak
MOST = 1024  # examples that are looked at
EVIDENCE_DEVIATION = 3.15  # of the frozen evidence of examples where margins deviate as `threshold.mixture` knows
DISTINCTION = 0.2  # share by which margins deviate more with what distinction adds
START_SAMPLES = 8.0  # examples that this deviation is worth before there are any


def label_statistics(labels: LabelSpace, terms: Sequence[EvidenceTerm], *, tau: float) -> LabelStatistics:
    """What the evidence needs of a label space: from its text, and from its examples where there are enough."""
    found = LabelStatistics(len(labels.names), len(labels.negatives), gap_shrinkage(labels), 0.0)
    if labels.examples is None or len(labels.examples) < FEWEST:  # too few to move names, or to show anything
        return found._replace(typical_peak=typical_peak(labels))
    # those that taught fit better than images of the stream do, the more so the more there are
    shown_by = labels.spared if labels.spared and len(labels.spared) >= FEWEST else labels.examples
    z = some_examples(shown_by.z).to(labels.id_anchors)
    shown = evidence(text_logits(labels, z, tau=tau), found, terms)
    share = coverage(labels.examples, len(labels.names))
    return found._replace(typical_peak=measured_peak(shown), unit=measured_unit(shown.value, share))


def some_examples(z: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """At most MOST of the examples, spread evenly."""
    return z[:: math.ceil(len(z) / MOST)]


def measured_peak(examples: Evidence) -> float:
    """The mean z-score of the best name of an example among the negatives."""
    return float(examples.peak_z_score.double().mean())


def measured_unit(value: Float[Tensor, " n"], coverage: float = 1.0) -> float:
    """How many nats of evidence make one of margin, from the evidence of examples.

    With it margins of known images deviate as they do without examples. `coverage` is how much distinction counts.
    """
    spread = (value.double() - value.double().mean()).square().sum() if len(value) > 1 else torch.zeros(())
    start = START_SAMPLES * EVIDENCE_DEVIATION**2
    deviation = math.sqrt((float(spread) + start) / (len(value) - 1 + START_SAMPLES))
    return (1 + DISTINCTION * coverage) * deviation / EVIDENCE_DEVIATION
