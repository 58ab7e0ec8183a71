"""What names look like in image space: running means of the images that each name claims, in place of its text.

Text and images lie apart, so a name starts at the mean image of its side, moved a little in the direction of its text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.pooled.constants import POOLED


class NameSums(NamedTuple):
    """How many images each name has claimed, and their sum."""

    images: Float[Tensor, " C"]
    total: Float[Tensor, "C d"]

    @classmethod
    def empty(cls, anchors: Float[Tensor, "C d"]) -> NameSums:
        """The sums before the first image."""
        return cls(anchors.new_zeros(len(anchors)), torch.zeros_like(anchors))

    def add_(self, name: Int[Tensor, "B N"], share: Float[Tensor, "B N"], z: Float[Tensor, "B d"]) -> None:
        """Add images that claim `share` of each of their names to these sums, which must be the caller's own."""
        image, place = (share >= POOLED.least_share).nonzero(as_tuple=True)
        claimed, weight = name[image, place], share[image, place].to(z.dtype)
        self.images.index_add_(0, claimed, weight)
        self.total.index_add_(0, claimed, weight.unsqueeze(1) * z[image])


class Looks(NamedTuple):
    """Where the names of one side lie in image space, as it stays until the next update."""

    origin: Float[Tensor, " d"]  # where the mean text of all names would start
    length: Float[Tensor, " C"]  # half the squared length of each name as it is now
    start_length: Float[Tensor, " C"]  # the same before the name claimed anything

    @classmethod
    def of(cls, anchors: Float[Tensor, "C d"], sums: NameSums, origin: Float[Tensor, " d"]) -> Looks:
        """What follows from the sums of a side."""
        start = torch.add(origin, anchors, alpha=POOLED.text_share)
        mean = torch.add(sums.total, start, alpha=POOLED.name_start)
        mean /= (POOLED.name_start + sums.images).unsqueeze(1)
        return cls(origin, mean.square_().sum(1) / 2, start.square_().sum(1) / 2)


class TopNames(NamedTuple):
    """The names of one side that are nearest to each image, the nearest first."""

    name: Int[Tensor, "T N"]
    logit: Float[Tensor, "T N"]

    @classmethod
    def of(cls, logits: Float[Tensor, "T C"]) -> TopNames:
        """The names with the largest logits."""
        logit, name = logits.topk(min(POOLED.top, logits.shape[1]), dim=1)
        return cls(name, logit)


class NearestNames(NamedTuple):
    """The nearest names of both sides."""

    known: TopNames
    negative: TopNames


class NameLogits(NamedTuple):
    """What image space adds to the logits of the top names."""

    start: Float[Tensor, "T N"]  # of a name that has claimed nothing
    learned: Float[Tensor, "T N"]  # of the name as it is now
    images: Float[Tensor, "T N"]  # that the name has claimed


def name_logits(z: Float[Tensor, "T d"], top: TopNames, sums: NameSums, looks: Looks, *, tau: float) -> NameLogits:
    """a (z . mu - |mu|^2 / 2) of the start and of the present mean mu of each top name, a = `name_scale`."""
    start = (z @ looks.origin).unsqueeze(1) + POOLED.text_share * tau * top.logit  # the logit is z . text / tau
    images = sums.images[top.name]
    learned = (products(z, sums.total, top.name) + POOLED.name_start * start) / (POOLED.name_start + images)
    return NameLogits(
        POOLED.name_scale * (start - looks.start_length[top.name]),
        POOLED.name_scale * (learned - looks.length[top.name]),
        images,
    )


def products(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], name: Int[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    """The product of each image with the rows of some names."""
    chosen = rows.index_select(0, name.flatten()).view(*name.shape, rows.shape[1])
    return torch.bmm(z.unsqueeze(1), chosen.mT).squeeze(1)  # the other way round takes five times as long


def energy_gain(top: TopNames, image: NameLogits) -> Float[Tensor, " T"]:
    """By how much image space raises the energy of the top names."""
    return torch.logsumexp(top.logit + image.learned, dim=1) - torch.logsumexp(top.logit, dim=1)
