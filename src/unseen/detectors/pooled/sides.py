"""The two sides of a stream, images that are likely known and likely unknown, as sums with soft weights.

Every quantity is a mean per side, so the mix of the stream moves none of them; all of it is sums, so merging is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.state import map_state

Array = np.ndarray[Any, Any]
BOUNDARY, SLOPE = 1.0, 0.5  # a margin of 1 nat is as likely known as unknown; odds change by e every 2 nats
RIDGE = 2.0  # prior precision of the direction, in samples
CLOSE, STEPS = 1e-9, 32  # relative error at which conjugate gradients end, and most steps
ROUNDS = 2  # of refinement of a solution by a factor in float32
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
        """The sums before the first image."""
        shapes = (2,), (2, dim), (2, dim, dim), (2,), (2, dim)
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def updated(self, weight: Float[Tensor, "2 B"], z: Float[Tensor, "B d"], margin: Float[Tensor, " B"]) -> SideSums:
        """The sums after some images."""
        return map_state(torch.add, self, side_sums(weight, z, margin))

    def add_(self, weight: Float[Tensor, "2 B"], z: Float[Tensor, "B d"], margin: Float[Tensor, " B"]) -> SideSums:
        """Add images to these sums, which must be the caller's own."""
        for total, more in zip(self, side_sums(weight, z, margin), strict=True):
            total += more
        return self

    def means(self, start: Float[Tensor, " d"] | None = None) -> Float[Tensor, "2 d"]:
        """The mean image of each side, drawn to the mean of all by a few images; `start` is worth as many."""
        overall = self.image.sum(0) / self.weight.sum().clamp(min=1)
        if start is not None:
            overall = (self.image.sum(0) + START_SAMPLES * start) / (self.weight.sum() + START_SAMPLES)
        return (self.image + START_SAMPLES * overall) / (self.weight + START_SAMPLES).unsqueeze(1)


def side_sums(weight: Float[Tensor, "2 B"], z: Float[Tensor, "B d"], margin: Float[Tensor, " B"]) -> SideSums:
    """The sums over some images; outer products in the precision of the images."""
    weighted = (weight.to(z.dtype).unsqueeze(2) * z).transpose(0, 1).flatten(1)
    gram, z = (weighted.T @ z).view(2, z.shape[1], z.shape[1]), z.double()
    return SideSums(weight.sum(1), weight @ z, gram, weight @ margin, (weight * margin) @ z)


class Direction(NamedTuple):
    """The direction in image space along which margins change, with both sides counted alike."""

    slope: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    level: Float[Tensor, ""]
    images: Float[Tensor, ""]  # effective number of images: twice the harmonic mean of the two sides

    @classmethod
    def none(cls, like: Float[Tensor, "2 d"]) -> Direction:
        """The direction before the first image."""
        zero = torch.zeros_like(like[0])
        return cls(zero, zero, zero.new_full((), sum(START_MARGIN) / 2), zero.new_zeros(()))

    def predict(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """U, the margin that images which look like this one have."""
        return (z.double() - self.centre) @ self.slope + self.level


def side_weights(margin: Float[Tensor, " T"]) -> Float[Tensor, "2 T"]:
    """How much each image belongs to the unknown and to the known side."""
    known = torch.sigmoid(SLOPE * (margin - BOUNDARY))
    return torch.stack([1 - known, known])


def few_weights(margin: Array) -> Array:
    """How much each of few images belongs to the known side."""
    return 0.5 + 0.5 * np.tanh(SLOPE / 2 * (margin - BOUNDARY))  # the sigmoid, without overflow


class Regression(NamedTuple):
    """A ridge regression of margins on images in which both sides have the same weight, as a linear system."""

    scatter: Float[Tensor, "d d"]
    pull: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    level: Float[Tensor, ""]
    effective: Float[Tensor, ""]  # number of images

    @classmethod
    def of(cls, sums: SideSums) -> Regression:
        """The system that the sums give."""
        count = sums.weight.clamp(min=1e-9)
        effective = 4 / (1 / count).sum()
        means, margins = sums.image / count.unsqueeze(1), sums.margin / count
        centre, (unknown, known) = means.mean(0), START_MARGIN
        start = torch.stack([count.new_full((), unknown), count.new_full((), known)])
        level = ((sums.margin + START_SAMPLES * start) / (count + START_SAMPLES)).mean()
        scatter = (sums.gram.flatten(1).T @ (0.5 / count)).view_as(sums.gram[0]).addr_(centre, centre, alpha=-1)
        scatter.diagonal().add_(RIDGE / effective)
        pull = (sums.cross / count.unsqueeze(1)).mean(0) - centre * margins.mean()
        return cls(scatter, pull, centre, level, effective)


def fit_direction(sums: SideSums, *, dtype: torch.dtype = torch.float64, few: bool = False) -> Direction:
    """The ridge regression of margins on images in which both sides have the same weight.

    `dtype` is the precision of the factor (`factor_solution`); with `few` images conjugate gradients are tried first.
    """
    system = Regression.of(sums)
    slope = gradient_solution(system.scatter, system.pull) if few else None
    slope = factor_solution(system.scatter, system.pull, dtype=dtype) if slope is None else slope
    return Direction(slope, system.centre, system.level, system.effective)


def gradient_solution(matrix: Float[Tensor, "d d"], right: Float[Tensor, " d"]) -> Float[Tensor, " d"] | None:
    """The solution of a positive definite system by conjugate gradients, None where they take too long.

    With few images the prior keeps the condition low: 10 steps for 32 images, 25 for 2,000, against a factor that costs
    as much as 50.
    """
    solution, left = torch.zeros_like(right), right
    along, size = left, float(left @ left)
    least = CLOSE**2 * size
    for _ in range(STEPS):
        if size <= least:
            return solution
        image = matrix @ along
        step = size / float(along @ image)
        solution = torch.add(solution, along, alpha=step)
        left = torch.sub(left, image, alpha=step)
        size, before = float(left @ left), size
        along = torch.add(left, along, alpha=size / before)
    return None


def factor_solution(
    matrix: Float[Tensor, "d d"], right: Float[Tensor, " d"], *, dtype: torch.dtype
) -> Float[Tensor, " d"]:
    """The solution of a positive definite system, factored in precision `dtype` and refined in its own.

    A factor in float32 takes 0.4 times the time; each round of refinement takes the error down by about
    condition * 1e-7, and ridge regression keeps the condition below 1e6 in streams of up to a million images.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix.to(dtype))
    if dtype != matrix.dtype and not matrix.is_cuda and bool(failed):
        return factor_solution(matrix, right, dtype=matrix.dtype)
    solution = torch.cholesky_solve(right.to(dtype).unsqueeze(1), factor).squeeze(1).to(right.dtype)
    for _ in range(0 if dtype == matrix.dtype else ROUNDS):
        left = torch.addmv(right, matrix, solution, alpha=-1).to(dtype)
        solution = solution + torch.cholesky_solve(left.unsqueeze(1), factor).squeeze(1)
    return solution
