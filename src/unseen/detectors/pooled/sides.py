"""The pool: what the two sides of a stream, images that are likely known and likely unknown, say of a new image.

Every quantity is a mean per side, so the mix of the stream moves none of them; all of it is sums, so merging is exact.
A ridge regression predicts the margin that similar images have. What image space adds to a score is a likelihood ratio
that may lower it by much, and raises it by little: unknown images may look like known ones (near unknowns), so
log N1(u) - log((1 - p) N0(u) + p N1(u)) is at most log(1 / p).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.pooled.constants import POOLED


def side_weights(margin: Float[Tensor, " T"]) -> Float[Tensor, "2 T"]:
    """How much each image belongs to the unknown and to the known side."""
    known = torch.sigmoid(margin - POOLED.boundary)
    return torch.stack([1 - known, known])


class SideSums(NamedTuple):
    """Weighted sums over the unknown (row 0) and the known side (row 1)."""

    weight: Float[Tensor, "2"]  # number of images, by weight
    image: Float[Tensor, "2 d"]
    gram: Float[Tensor, "2 d d"]  # of outer products of images
    margin: Float[Tensor, "2"]
    cross: Float[Tensor, "2 d"]  # of margin times image

    @classmethod
    def empty(cls, dim: int, device: torch.device | None = None) -> SideSums:
        """The sums before the first image."""
        shapes = (2,), (2, dim), (2, dim, dim), (2,), (2, dim)
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))

    def add_(self, weight: Float[Tensor, "2 B"], z: Float[Tensor, "B d"], margin: Float[Tensor, " B"]) -> None:
        """Add images to these sums, which must be the caller's own; outer products in the precision of the images."""
        weighted = (weight.to(z.dtype).unsqueeze(2) * z).transpose(0, 1).flatten(1)
        self.gram.add_((weighted.T @ z).view_as(self.gram))
        z = z.double()
        self.weight.add_(weight.sum(1))
        self.image.add_(weight @ z)
        self.margin.add_(weight @ margin)
        self.cross.add_((weight * margin) @ z)

    def means(self, start: Float[Tensor, " d"] | None = None) -> Float[Tensor, "2 d"]:
        """The mean image of each side, drawn to the mean of all by a few images; `start` is worth as many."""
        overall, few = self.image.sum(0) / self.weight.sum().clamp(min=1), POOLED.side_start
        if start is not None:
            overall = (self.image.sum(0) + few * start) / (self.weight.sum() + few)
        return (self.image + few * overall) / (self.weight + few).unsqueeze(1)


class Regression(NamedTuple):
    """A ridge regression of margins on images in which both sides have the same weight, as a linear system."""

    scatter: Float[Tensor, "d d"]
    pull: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    level: Float[Tensor, ""]
    effective: Float[Tensor, ""]  # number of images: twice the harmonic mean of the two sides

    @classmethod
    def of(cls, sums: SideSums) -> Regression:
        """The system that the sums give."""
        count, few = sums.weight.clamp(min=1e-9), POOLED.side_start
        effective = 4 / (1 / count).sum()
        means, margins = sums.image / count.unsqueeze(1), sums.margin / count
        centre = means.mean(0)
        level = ((sums.margin + few * count.new_tensor(POOLED.start_margins)) / (count + few)).mean()
        scatter = (sums.gram.flatten(1).T @ (0.5 / count)).view_as(sums.gram[0]).addr_(centre, centre, alpha=-1)
        scatter.diagonal().add_(POOLED.ridge / effective)
        pull = (sums.cross / count.unsqueeze(1)).mean(0) - centre * margins.mean()
        return cls(scatter, pull, centre, level, effective)


class Direction(NamedTuple):
    """The direction in image space along which margins change, with both sides counted alike."""

    slope: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    level: Float[Tensor, ""]
    images: Float[Tensor, ""]  # effective number of images

    @classmethod
    def none(cls, dim: int, device: torch.device | None = None) -> Direction:
        """The direction before the first image."""
        zero = torch.zeros(dim, dtype=torch.float64, device=device)
        return cls(zero, zero, zero.new_tensor(sum(POOLED.start_margins) / 2), zero.new_zeros(()))

    @classmethod
    def of(cls, sums: SideSums) -> Direction:
        """The solution of the regression."""
        system = Regression.of(sums)
        slope, _ = torch.linalg.solve_ex(system.scatter, system.pull)  # on a CPU faster than by a Cholesky factor
        return cls(slope, system.centre, system.level, system.effective)

    def predict(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """The margin that images which look like this one have."""
        return (z.double() - self.centre) @ self.slope + self.level


class PredictionSums(NamedTuple):
    """What predictions u were, each made before its own image was learned."""

    sides: Float[Tensor, "2 3"]  # weight, u and u^2 per side; an image weighs its place in the stream
    powers: Float[Tensor, "5"]  # number and first four powers

    @classmethod
    def empty(cls, device: torch.device | None = None) -> PredictionSums:
        """The sums before the first prediction."""
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((2, 3), (5,))))

    def add_(self, weight: Float[Tensor, "2 B"], predicted: Float[Tensor, " B"], seen: int) -> None:
        """Add predictions to these sums, which must be the caller's own.

        Earlier ones, of a younger direction, weigh less.
        """
        powers = torch.stack([predicted**power for power in range(5)])
        self.sides.add_((seen + len(predicted)) * (weight @ powers[:3].T))
        self.powers.add_(powers.sum(1))


class Likelihood(NamedTuple):
    """A log ratio of two normals that is linear in u, because they share their variance."""

    middle: Float[Tensor, ""]
    rate: Float[Tensor, ""]  # nats per nat of u, with the weight the pool has earned

    @classmethod
    def none(cls, device: torch.device | None = None) -> Likelihood:
        """The likelihood before the first prediction."""
        return cls(*torch.zeros(2, dtype=torch.float64, device=device))

    @classmethod
    def of(cls, sums: PredictionSums, effective: Float[Tensor, ""], seen: int) -> Likelihood:
        """The likelihood ratio of predictions, weighted by how many there were and how clearly they fall apart.

        Sides are assigned by the margin of the image itself. Where images that look alike only share how easy they are,
        predictions have one mode, Sarle's coefficient of bimodality is 0, and predictions add nothing.
        """
        sides, half, tiny = sums.sides / seen, POOLED.half_pool, POOLED.tiny_margins  # the latest image weighs 1
        weight, first, second = sides.unbind(1)
        total = sides.sum(0)
        overall = total[1] / total[0].clamp(min=tiny)
        spread = (total[2] / total[0].clamp(min=tiny) - overall.square()).clamp(min=tiny)
        mean = (first + half * overall) / (weight + half)
        square = (second + half * (spread + overall.square())) / (weight + half)
        variance = (square - mean.square()).clamp(min=tiny).mean()
        earned = effective / (effective + half) * bimodality(sums.powers).sqrt()
        return cls(mean.mean(), earned * (mean[1] - mean[0]) / variance)

    def log_ratio(self, predicted: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The log ratio of known to unknown for each prediction."""
        return self.rate * (predicted - self.middle)


def raised(log_ratio: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """What a log ratio of known to unknown adds to a score, where some unknown images look like known ones."""
    most, near = POOLED.largest_ratio, POOLED.near_share
    return -torch.log((1 - near) * torch.exp(-log_ratio.clamp(-most, most)) + near)


def bimodality(powers: Float[Tensor, "5"]) -> Float[Tensor, ""]:
    """Sarle's coefficient, (skewness^2 + 1) / kurtosis, from 0 for a normal to 1 for two points."""
    mean, second, third, fourth = (powers[1:] / powers[0].clamp(min=1)).unbind()
    variance = torch.maximum(second - mean.square(), 1e-6 * second + POOLED.tiny_margins)
    skew = (third - 3 * mean * second + 2 * mean**3) / variance**1.5
    kurtosis = (fourth - 4 * mean * third + 6 * mean.square() * second - 3 * mean**4) / variance.square()
    of_normal = 1 / 3
    excess = (skew.square() + 1) / kurtosis.clamp(min=1) - of_normal
    return torch.where(powers[0] > 4, excess / (1 - of_normal), 0.0).clamp(0, 1)
