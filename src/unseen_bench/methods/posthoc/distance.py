"""Scores by distance to the ID images: KNN, Mahalanobis, RMDS, ViM."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import setting
from unseen.errors import import_extra
from unseen.odds import energy
from unseen_bench.methods.posthoc.base import PostHoc


@dataclass(frozen=True, eq=False)
class KNN(PostHoc):
    """Score by the cosine to the k-th nearest ID image (ICML 2022)."""

    # published for one part in a hundred of ImageNet; the farthest where there are fewer images
    k: int = setting(10, 1, 1_000_000)

    name: ClassVar[str] = "fit-knn"

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """The cosine: for unit vectors it ranks as the distance does."""
        near = z @ self.images.z.T
        return near.topk(min(self.k, near.shape[1]), dim=1).values[:, -1]


@dataclass(frozen=True, eq=False)
class Mahalanobis(PostHoc):
    """Score by the distance to the nearest class mean under one shared covariance (NeurIPS 2018).

    The published zero-shot row of 98.94 FPR95 comes from a defect, and from no ID images. The covariance is shrunk
    (Ledoit-Wolf): there may be fewer images than dimensions.
    """

    name: ClassVar[str] = "fit-mahalanobis"

    @cached_property
    def means(self) -> Float[Tensor, "K d"]:
        """The mean of each class."""
        images = self.images
        return torch.stack([images.z[images.label == c].mean(dim=0) for c in range(len(images.bias))])

    @cached_property
    def shared_precision(self) -> Float[Tensor, "d d"]:
        """The precision that all classes share."""
        return precision(self.images.z - self.means[self.images.label])

    def distances(self, z: Float[Tensor, "T d"]) -> Float[Tensor, "T K"]:
        """The squared distance to every class mean."""
        return _squared_distances(z, self.means, self.shared_precision)

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return -self.distances(z).amin(dim=1)


@dataclass(frozen=True, eq=False)
class RMDS(Mahalanobis):
    """Score by how much nearer a class mean is than the mean of all images (2021)."""

    name: ClassVar[str] = "fit-rmds"

    @cached_property
    def overall_mean(self) -> Float[Tensor, "1 d"]:
        """The mean of all images."""
        return self.images.z.mean(dim=0, keepdim=True)

    @cached_property
    def background(self) -> Float[Tensor, "d d"]:
        """The precision of all images as one Gaussian."""
        return precision(self.images.z - self.overall_mean)

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return _squared_distances(z, self.overall_mean, self.background).squeeze(1) - self.distances(z).amin(dim=1)


@dataclass(frozen=True, eq=False)
class ViM(PostHoc):
    """Score by the energy less a virtual logit: the length outside the ID images' main directions (CVPR 2022)."""

    # of the dimensions is the main space; published for features of CLIP's width
    share: float = setting(0.5, 0, 0.99, low_open=True)

    name: ClassVar[str] = "fit-vim"

    @cached_property
    def origin(self) -> Float[Tensor, " d"]:
        """The point that the head calls no class more than another."""
        images = self.images
        return -(torch.linalg.pinv(images.weight.double()) @ images.bias.double()).to(images.z)

    @cached_property
    def residual_directions(self) -> Float[Tensor, "d r"]:
        """Directions that span what the main ones of the ID images leave out."""
        centred = (self.images.z - self.origin).double()
        _, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
        return vectors[:, : -int(self.share * len(vectors))].to(self.images.z)

    @cached_property
    def scale(self) -> Float[Tensor, ""]:
        """What makes the virtual logit as long as the largest real one, on average over the ID images."""
        images = self.images
        return images.logits(images.z).amax(dim=1).mean() / self._residual(images.z).mean()

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return energy(self.images.logits(z)) - self.scale * self._residual(z)

    def _residual(self, z: Tensor) -> Tensor:
        return ((z - self.origin) @ self.residual_directions).norm(dim=1)


def precision(centred: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """The inverse of the covariance, shrunk towards a sphere by the Ledoit-Wolf rule."""
    found = (
        import_extra("sklearn.covariance", "bench")
        .LedoitWolf(assume_centered=True)
        .fit(centred.double().cpu().numpy())
        .precision_
    )
    return torch.from_numpy(found).to(centred)


def _squared_distances(z: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    # (z - m)' P (z - m) written out, so that no [T, K, d] ever exists
    side = z @ precision
    return (side * z).sum(1, keepdim=True) - 2 * side @ means.T + ((means @ precision) * means).sum(1)
