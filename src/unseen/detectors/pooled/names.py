"""What names look like in image space: running means of the images that each name claims, in place of its text.

Text and images lie apart, so a name starts at the mean image of its side, moved a little in the direction of its text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

TOP = 16  # names of a side that may matter for an image: at tau = 0.01 the others have no mass
GROUP = 16  # columns of which only the largest is compared at first
NAME_SCALE = 40.0  # nats per unit of cosine in image space; text has 1 / tau = 100
TEXT_SHARE = 0.25  # how far apart names lie in image space, against their distance in text space
START_SAMPLES = 1.0  # images that the start of a name is worth
LEAST_SHARE = 1e-3  # an image that is claimed less than this teaches a name nothing worth the time


class NameSums(NamedTuple):
    """How many images each name has claimed, and their sum."""

    images: Float[Tensor, " C"]
    total: Float[Tensor, "C d"]

    @classmethod
    def empty(cls, anchors: Float[Tensor, "C d"]) -> NameSums:
        """Return the sums before the first image."""
        return cls(anchors.new_zeros(len(anchors)), torch.zeros_like(anchors))

    def updated(self, name: Int[Tensor, "B N"], share: Float[Tensor, "B N"], z: Float[Tensor, "B d"]) -> NameSums:
        """Return the sums after images that claim `share` of each of their names."""
        image, place = (share >= LEAST_SHARE).nonzero(as_tuple=True)
        claimed, weight = name[image, place], share[image, place].to(z.dtype)
        total = self.total.index_add(0, claimed, weight.unsqueeze(1) * z[image])
        return NameSums(self.images.index_add(0, claimed, weight), total)


class TopNames(NamedTuple):
    """The names of one side that are nearest to each image, the nearest first."""

    name: Int[Tensor, "T N"]
    logit: Float[Tensor, "T N"]


class NameShapes(NamedTuple):
    """Where the names of one side lie in image space."""

    side: Float[Tensor, " d"]  # mean image of the side
    start: Float[Tensor, " C"]  # squared length of where each name starts
    mean: Float[Tensor, " C"]  # squared length of where each name is now


class NearestNames(NamedTuple):
    """The nearest names of both sides."""

    known: TopNames
    negative: TopNames


class NameLogits(NamedTuple):
    """What image space adds to the logits of the top names."""

    start: Float[Tensor, "T N"]  # of a name that has claimed nothing
    learned: Float[Tensor, "T N"]  # of the name as it is now
    images: Float[Tensor, "T N"]  # that the name has claimed


def top_names(logits: Float[Tensor, "T C"], *, top: int = TOP) -> TopNames:
    """Return the `top` largest logits of each row, by the largest of each group of columns first: exact, and faster."""
    count = logits.shape[1]
    if count <= GROUP * top:
        logit, index = logits.topk(min(top, count), dim=1)
        return TopNames(index, logit)
    whole = count - count % GROUP
    best = logits[:, :whole].unflatten(1, (-1, GROUP)).amax(2).topk(top, dim=1).indices
    columns = (best.unsqueeze(2) * GROUP + torch.arange(GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(whole, count, device=logits.device).expand(len(logits), -1)
    columns = torch.cat([columns, rest], dim=1)
    logit, place = logits.gather(1, columns).topk(top, dim=1)
    return TopNames(columns.gather(1, place), logit)


def name_shapes(
    anchors: Float[Tensor, "C d"], sums: NameSums, side_mean: Float[Tensor, " d"], text_mean: Float[Tensor, " d"]
) -> NameShapes:
    """Return where names lie; a name starts at the mean image of its side, moved towards its text."""
    side = side_mean.to(anchors.dtype)
    offset = anchors @ side - text_mean @ side
    length = anchors.square().sum(1) - 2 * (anchors @ text_mean) + text_mean.square().sum()
    start = side.square().sum() + 2 * TEXT_SHARE * offset + TEXT_SHARE**2 * length
    along = sums.total @ side + TEXT_SHARE * ((anchors * sums.total).sum(1) - sums.total @ text_mean)
    mean = START_SAMPLES**2 * start + 2 * START_SAMPLES * along + sums.total.square().sum(1)
    return NameShapes(side, start, mean / (START_SAMPLES + sums.images).square())


def name_logits(
    z: Float[Tensor, "T d"],
    cosine: Float[Tensor, "T N"],
    name: Int[Tensor, "T N"],
    sums: NameSums,
    shapes: NameShapes,
    text_mean: Float[Tensor, " d"],
) -> NameLogits:
    """Return a (z . mu - |mu|^2 / 2) of the start and of the present mean mu of each top name, a = NAME_SCALE.

    Every product but that with the summed images follows from `cosine`, the product of image and text.
    """
    images = sums.images[name]
    start = (z @ shapes.side - TEXT_SHARE * (z @ text_mean)).unsqueeze(1) + TEXT_SHARE * cosine
    learned = torch.bmm(sums.total[name], z.unsqueeze(2)).squeeze(2)
    mean = (START_SAMPLES * start + learned) / (START_SAMPLES + images)
    at_start, now = (NAME_SCALE * (dot - norm[name] / 2) for dot, norm in ((start, shapes.start), (mean, shapes.mean)))
    return NameLogits(at_start, now, images)


def energy_gain(top: TopNames, image: NameLogits) -> Float[Tensor, " T"]:
    """Return by how much image space raises the energy of the top names."""
    return torch.logsumexp(top.logit + image.learned, dim=1) - torch.logsumexp(top.logit, dim=1)
