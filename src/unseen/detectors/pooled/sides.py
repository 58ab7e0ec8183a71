"""The two sides of a stream, images that are likely known and likely unknown, as sums with soft weights.

Every quantity is a mean per side, so the mix of the stream moves none of them; all of it is sums, so merging is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

BOUNDARY, SLOPE = 3.0, 0.5  # a margin of 3 nats is as likely known as unknown; odds change by e every 2 nats
RIDGE = 2.0  # prior precision of the direction, in samples
START_SAMPLES = 8.0  # images that the start of a mean is worth
START_MARGIN = (0.0, 5.0)  # mean margin of unknown and of known images before there is any


class SideSums(NamedTuple):
    """Weighted sums over the unknown (row 0) and the known side (row 1)."""

    weight: Float[Tensor, "2"]  # number of images, by weight
    image: Float[Tensor, "2 d"]
    gram: Float[Tensor, "2 d d"]  # of outer products of images
    margin: Float[Tensor, "2"]
    cross: Float[Tensor, "2 d"]  # of margin times image

    @classmethod
    def empty(cls, dim: int) -> SideSums:
        """Return the sums before the first image."""
        shapes = (2,), (2, dim), (2, dim, dim), (2,), (2, dim)
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def updated(self, weight: Float[Tensor, "2 B"], z: Float[Tensor, "B d"], margin: Float[Tensor, " B"]) -> SideSums:
        """Return the sums after some images."""
        gram = torch.stack([(side.unsqueeze(1) * z).T @ z for side in weight])
        gained = SideSums(weight.sum(1), weight @ z, gram, weight @ margin, (weight * margin) @ z)
        return SideSums(*(total + more for total, more in zip(self, gained, strict=True)))

    @property
    def means(self) -> Float[Tensor, "2 d"]:
        """Return the mean image of each side, drawn to the mean of all by a few images."""
        overall = self.image.sum(0) / self.weight.sum().clamp(min=1)
        return (self.image + START_SAMPLES * overall) / (self.weight + START_SAMPLES).unsqueeze(1)


class Direction(NamedTuple):
    """The direction in image space along which margins change, with both sides counted alike."""

    slope: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    level: Float[Tensor, ""]
    images: Float[Tensor, ""]  # effective number of images: twice the harmonic mean of the two sides

    @classmethod
    def none(cls, like: Float[Tensor, "2 d"]) -> Direction:
        """Return the direction of a stream that has shown nothing."""
        zero = torch.zeros_like(like[0])
        return cls(zero, zero, zero.new_tensor(sum(START_MARGIN) / 2), zero.new_tensor(0.0))

    def predict(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """Return u, the margin that images which look like this one have."""
        return (z.double() - self.centre) @ self.slope + self.level


def side_weights(margin: Float[Tensor, " T"]) -> Float[Tensor, "2 T"]:
    """Return how much each image belongs to the unknown and to the known side."""
    known = torch.sigmoid(SLOPE * (margin - BOUNDARY))
    return torch.stack([1 - known, known])


def fit_direction(sums: SideSums) -> Direction:
    """Return the ridge regression of margins on images in which both sides have the same weight."""
    count = sums.weight.clamp(min=1e-9)
    effective = 4 / (1 / count).sum()
    means, margins = sums.image / count.unsqueeze(1), sums.margin / count
    centre, start = means.mean(0), sums.margin.new_tensor(START_MARGIN)
    level = ((sums.margin + START_SAMPLES * start) / (count + START_SAMPLES)).mean()
    scatter = (sums.gram / count[:, None, None]).mean(0) - torch.outer(centre, centre)
    pull = (sums.cross / count.unsqueeze(1)).mean(0) - centre * margins.mean()
    scatter.diagonal().add_(RIDGE / effective)
    slope = torch.cholesky_solve(pull.unsqueeze(1), torch.linalg.cholesky(scatter)).squeeze(1)
    return Direction(slope, centre, level, effective)
