"""What examples show of all known images: how well names fit them, and by how much the evidence of them differs.

Examples move anchors, and contrast and surprise count less with them. Both change where margins of known images lie and
how far apart, which threshold, sides and confidence must know. Spared examples show it. Where there are none, a few of
each name that taught can: the penalty of residuals is so high that their peaks and evidence are nearly those of images
that did not. Fewer than FEWEST move no name, so that what the text says holds.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.pooled.evidence import Evidence

FEWEST = 8  # examples; the mean peak of fewer is off by more than a third of the deviation of a peak
MOST = 1024  # examples that are looked at
EVIDENCE_DEVIATION = 3.15  # of the frozen evidence of examples where margins deviate as `threshold.mixture` knows
DISTINCTION = 0.2  # share by which margins deviate more with what distinction adds
START_SAMPLES = 8.0  # examples that this deviation is worth before there are any


def some_examples(z: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """Return at most MOST of the examples, spread evenly."""
    return z[:: math.ceil(len(z) / MOST)]


def measured_peak(examples: Evidence) -> float:
    """Return the mean z-score of the best name of an example among the negatives."""
    return float(examples.peak_z_score.double().mean())


def measured_unit(value: Float[Tensor, " n"], coverage: float = 1.0) -> float:
    """Return how many nats of evidence make one of margin, from the evidence of examples.

    With it margins of known images deviate as they do without examples. `coverage` is how much distinction counts.
    """
    spread = (value.double() - value.double().mean()).square().sum() if len(value) > 1 else torch.zeros(())
    start = START_SAMPLES * EVIDENCE_DEVIATION**2
    deviation = math.sqrt((float(spread) + start) / (len(value) - 1 + START_SAMPLES))
    return (1 + DISTINCTION * coverage) * deviation / EVIDENCE_DEVIATION
