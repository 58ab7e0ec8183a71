"""What sets a name apart in image space, by its examples and the variation that the stream shows.

Directions in which all images of a stream vary tell kinds of things apart (animals, vehicles), and near unknown images
share them with the names of their kind. What tells a name from the others of its kind lies in directions of little
variation. So the score gains by specific likeness, in which directions of much variation count less, and loses by plain
likeness. With P the inverse of the variation, c the mean image, and mu where the examples of a name lie,

    specific = (z - c) P (mu - c) - (mu - c) P (mu - c) / 2        plain = z . (mu - mean mu)

The mean of the examples, each left out of its own name, is subtracted, so that margins of known images stay where they
are while the stream shows its variation.

Where an image is named, a discriminant takes the place of what the look of a name adds without examples: with W the
inverse of the variation of examples about the mean of their name, and mu the mean of all that a name has claimed,
z W mu - mu W mu / 2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.names import NameSums, products
from unseen.detectors.pooled.sides import Regression, SideSums
from unseen.labels import Examples, LabelSpace


class NameRows(NamedTuple):
    """A linear function of an image for each name: row of the name times image - offset."""

    rows: Float[Tensor, "K d"]
    offset: Float[Tensor, " K"]

    def at(self, z: Float[Tensor, "T d"], name: Int[Tensor, "T N"]) -> Float[Tensor, "T N"]:
        """The function of each of some names."""
        return products(z, self.rows, name) - self.offset[name]


class Distinction(NamedTuple):
    """What is added to the score by the nearest name, and to the logits of names where an image is named."""

    score: NameRows
    naming: NameRows

    @classmethod
    def none(cls, labels: LabelSpace) -> Distinction:
        """The distinction before the first update, which adds 0; without rows where names have no examples."""
        anchors = labels.id_anchors[: len(labels.names) if labels.examples else 0]
        return cls(*(NameRows(torch.zeros_like(anchors), anchors.new_zeros(len(anchors))) for _ in range(2)))

    @classmethod
    def of(cls, sides: SideSums, known: NameSums, origin: Float[Tensor, " d"], labels: LabelSpace) -> Distinction:
        """What examples show in the variation of a stream, in which both sides count alike.

        `known` is what known names have claimed, `origin` where the mean text of all names would start.
        """
        if labels.examples is None:
            return cls.none(labels)
        system, look = Regression.of(sides), looks(labels, labels.examples)
        precision, centre = inverse_variation(system).to(look), system.centre.to(look)
        weight = float(saturation(system.effective, POOLED.half_stream)) * saturation(
            len(labels.examples), POOLED.half_examples
        )
        weight *= coverage(labels.examples, len(look))
        rows = (look - centre) @ precision
        specific = NameRows(rows, ((look + centre) * rows).sum(1) / 2)
        plain = look - look.mean(0)
        level = left_out_level(specific, look, centre, precision, labels.examples)
        return cls(
            NameRows(
                weight * (POOLED.specific * rows - POOLED.plain * plain),
                weight * (POOLED.specific * specific.offset + level),
            ),
            naming_rows(known, origin, labels, labels.examples),
        )


def saturation(number: Any, half: float) -> Any:
    """Number / (number + half): 0 for none, 1/2 for `half`, near 1 for many."""
    return number / (number + half)


def coverage(examples: Examples, names: int) -> float:
    """How much examples of some names count for all of them, from 0 to 1.

    All of it is measured from where the mean example lies, which is off where most names have none.
    """
    shown = int((examples.counts(names) > 0).sum())
    return saturation(shown, POOLED.unshown * (names - shown))


def naming_rows(known: NameSums, origin: Float[Tensor, " d"], labels: LabelSpace, examples: Examples) -> NameRows:
    """A discriminant less what the look of a name adds without examples, as far as examples count."""
    anchors, images = labels.id_anchors, known.images.unsqueeze(1)
    fewest = int(examples.counts(len(anchors)).min())
    if fewest < 2:  # one example shows no variation, and a name without would lose its images to the others
        return NameRows(torch.zeros_like(anchors), anchors.new_zeros(len(anchors)))
    start = torch.add(origin, anchors, alpha=POOLED.text_share)
    look = (known.total + POOLED.naming_start * start) / (images + POOLED.naming_start)
    rows = look @ examples.inverse_variation.to(look)
    mean = (known.total + POOLED.name_start * start) / (images + POOLED.name_start)
    plain = POOLED.name_scale * images / (images + POOLED.naming_samples)
    share = saturation(fewest, POOLED.half_naming)
    offset = POOLED.naming * rows * look - plain * (mean.square() - start.square())
    return NameRows(share * (POOLED.naming * rows - plain * (mean - start)), share * offset.sum(1) / 2)


def inverse_variation(system: Regression) -> Float[Tensor, "d d"]:
    """The inverse of the covariance, shrunk to the same variance in all directions and of mean variance 1.

    In float32: shrinkage keeps its condition low.
    """
    variation = system.scatter.clone()
    variation.diagonal().sub_(POOLED.ridge / system.effective)
    variation *= (1 - POOLED.shrinkage) / variation.diagonal().mean().clamp(min=POOLED.tiny_images)
    variation.diagonal().add_(POOLED.shrinkage)
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(variation.float()).L)


def looks(labels: LabelSpace, examples: Examples) -> Float[Tensor, "K d"]:
    """Where names lie in image space: the mean of their examples and of where the text would put them."""
    anchors, label = labels.id_anchors, examples.label.to(labels.id_anchors.device)
    start = examples.mean.to(anchors) + POOLED.text_share * (anchors - labels.text_mean)
    total = (POOLED.text_samples * start).index_add(0, label, examples.z.to(anchors))
    return total / images_of(label, total).unsqueeze(1)


def images_of(label: Int[Tensor, " n"], looks: Float[Tensor, "K d"]) -> Float[Tensor, " K"]:
    """How many images the look of each name is the mean of."""
    return POOLED.text_samples + torch.bincount(label, minlength=len(looks)).to(looks)


def left_out_level(
    specific: NameRows,
    look: Float[Tensor, "K d"],
    centre: Float[Tensor, " d"],
    precision: Float[Tensor, "d d"],
    examples: Examples,
) -> Float[Tensor, ""]:
    """The mean of what is added to the score of examples, each left out of the look of its name.

    Without an image x, of n, a look mu becomes b mu - (b - 1) x, b = n / (n - 1), and the specific likeness s of the
    two b^2 s - (b^2 - 1) (x - c) P (x - c) / 2.
    """
    step, every = math.ceil(len(examples) / POOLED.most_examples), examples.label.to(look.device)
    x, label = examples.z[::step].to(look), every[::step]
    images = images_of(every, look)[label]
    b = images / (images - 1)
    own = ((x - centre) @ precision * (x - centre)).sum(1)
    near = (x * specific.rows[label]).sum(1) - specific.offset[label]
    alike = b * (x * look[label]).sum(1) - (b - 1) - x @ look.mean(0)  # x is of length 1
    return (POOLED.specific * (b.square() * near - (b.square() - 1) * own / 2) - POOLED.plain * alike).mean()
