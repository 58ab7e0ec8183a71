"""What names look like in image space: running means of the images that each name claims, in place of its text.

Text and images lie apart, so a name starts at the mean image of its side, moved a little in the direction of its text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.sparse_copy import sparse_copy
from unseen.odds import cache_sized_ranges

TOP = 16  # names of a side that may matter for an image: at tau = 0.01 the others have no mass
GROUP = 8  # columns of which only the largest is compared at first
FEW_ROWS = 256  # up to so many, all products with a sample cost less than choosing some of them
NAME_SCALE = 40.0  # nats per unit of cosine in image space; text has 1 / tau = 100
TEXT_SHARE = 0.25  # how far apart names lie in image space, against their distance in text space
START_SAMPLES = 1.0  # images that the start of a name is worth
CLAIMED_BY_LOOK = 0.5  # share of what image space adds to a logit that counts when names claim images
NAMING_SAMPLES = 32.0  # images after which the look of a name counts half when an image is named
FEW_CLAIMED = 1 / 32  # share of the names with images up to which copying their rows alone costs less
LEAST_SHARE = 1e-3  # an image that is claimed less than this teaches a name nothing worth the time


class NameSums(NamedTuple):
    """How many images each name has claimed, and their sum."""

    images: Float[Tensor, " C"]
    total: Float[Tensor, "C d"]

    @classmethod
    def empty(cls, anchors: Float[Tensor, "C d"]) -> NameSums:
        """The sums before the first image."""
        return cls(anchors.new_zeros(len(anchors)), torch.zeros_like(anchors))

    def updated(self, name: Int[Tensor, "B N"], share: Float[Tensor, "B N"], z: Float[Tensor, "B d"]) -> NameSums:
        """The sums after images that claim `share` of each of their names."""
        copied = NameSums(self.images.clone(), sparse_copy(self.total, self.images != 0, share=FEW_CLAIMED))
        return copied.add_(name, share, z)

    def add_(self, name: Int[Tensor, "B N"], share: Float[Tensor, "B N"], z: Float[Tensor, "B d"]) -> NameSums:
        """Add images to these sums, which must be the caller's own."""
        if z.is_cuda:  # counting what is left out would wait for the GPU; zeros add nothing
            weight = torch.where(share >= LEAST_SHARE, share, 0).to(z.dtype)
            claimed, weighted = name.flatten(), (weight.unsqueeze(2) * z.unsqueeze(1)).flatten(0, 1)
        else:
            image, place = (share >= LEAST_SHARE).nonzero(as_tuple=True)
            claimed, weight = name[image, place], share[image, place].to(z.dtype)
            weighted = weight.unsqueeze(1) * z[image]
        self.images.index_add_(0, claimed, weight.flatten())
        self.total.index_add_(0, claimed, weighted)
        return self


class TopNames(NamedTuple):
    """The names of one side that are nearest to each image, the nearest first."""

    name: Int[Tensor, "T N"]
    logit: Float[Tensor, "T N"]


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
    """The `top` largest logits of each row, by the largest of each group of columns first: exact, and faster."""
    count = logits.shape[1]
    if count <= GROUP * top or (logits.shape[0] == 1 and not logits.is_cuda):
        logit, index = logits.topk(min(top, count), dim=1)
        return TopNames(index, logit)
    groups = count // GROUP  # a group is every `groups`-th column: the largest of each are then found in whole vectors
    largest = logits[:, : GROUP * groups].unflatten(1, (GROUP, groups)).amax(1)
    best = top_names(largest, top=top).name
    columns = (best.unsqueeze(2) + groups * torch.arange(GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(GROUP * groups, count, device=logits.device).expand(len(logits), -1)
    columns = torch.cat([columns, rest], dim=1)
    logit, place = logits.gather(1, columns).topk(top, dim=1)
    return TopNames(columns.gather(1, place), logit)


class NameMeans(NamedTuple):
    """Where some names of one side lie in image space."""

    mean: Float[Tensor, "R d"]  # of a name as it is now
    length: Float[Tensor, " R"]  # its squared length
    start_length: Float[Tensor, " R"]  # the same of a name that has claimed nothing


def name_means(
    anchors: Float[Tensor, "C d"], sums: NameSums, origin: Float[Tensor, " d"], rows: Int[Tensor, " R"] | None = None
) -> NameMeans:
    """Where names, or those in `rows`, lie; a name starts at `origin`, moved towards its text."""
    count = len(anchors) if rows is None else len(rows)
    if rows is not None and (count <= FEW_ROWS or rows.is_cuda):
        return _name_means(anchors, sums, origin, rows)
    means = NameMeans(anchors.new_empty(count, anchors.shape[1]), anchors.new_empty(count), anchors.new_empty(count))
    for part in cache_sized_ranges(means.mean):
        chosen = part if rows is None else rows[part]
        for whole, found in zip(means, _name_means(anchors, sums, origin, chosen), strict=True):
            whole[part] = found
    return means


class NameLengths(NamedTuple):
    """Half the squared length of each name in image space: as it is now, and before it claimed anything."""

    now: Float[Tensor, " C"]
    start: Float[Tensor, " C"]


def name_lengths(anchors: Float[Tensor, "C d"], sums: NameSums, origin: Float[Tensor, " d"]) -> NameLengths:
    """How far all names lie from the centre of image space."""
    parts = [_name_means(anchors, sums, origin, rows) for rows in cache_sized_ranges(anchors)]
    columns = zip(*((part.length / 2, part.start_length / 2) for part in parts), strict=True)
    return NameLengths(*map(torch.cat, columns))


def _name_means(
    anchors: Float[Tensor, "C d"], sums: NameSums, origin: Float[Tensor, " d"], rows: slice | Int[Tensor, " R"]
) -> NameMeans:
    start = torch.add(origin, select_rows(anchors, rows), alpha=TEXT_SHARE)
    mean = torch.add(select_rows(sums.total, rows), start, alpha=START_SAMPLES)
    mean /= (START_SAMPLES + select_rows(sums.images, rows)).unsqueeze(1)
    return NameMeans(mean, mean.square().sum(1), start.square_().sum(1))


def chosen_rows(name: Int[Tensor, "T N"], count: int) -> tuple[Int[Tensor, " R"] | None, Int[Tensor, "T N"]]:
    """Which of `count` names are needed, None for all, and the place of each top name among them."""
    if not name.is_cuda and name.numel() >= count:
        return None, name
    if name.is_cuda or len(name) == 1:  # finding equal names would cost more than it saves
        return name.flatten(), torch.arange(name.numel(), device=name.device).view_as(name)
    return name.unique(return_inverse=True)


def chosen_products(
    z: Float[Tensor, "T d"], rows: Float[Tensor, "R d"], place: Int[Tensor, "T N"]
) -> Float[Tensor, "T N"]:
    """The product of each sample with each of its rows."""
    if z.is_cuda and len(rows) == place.numel():  # each sample has rows of its own
        return torch.bmm(rows.view(*place.shape, z.shape[1]), z.unsqueeze(2)).squeeze(2)
    if len(rows) <= FEW_ROWS:
        return (z @ rows.T).gather(1, place)
    products = z.new_empty(place.shape)
    for part in cache_sized_ranges(place, width=place.shape[1] * z.shape[1]):
        some = select_rows(rows, place[part].flatten()).view(*place[part].shape, -1)
        torch.sum(some.mul_(z[part].unsqueeze(1)), 2, out=products[part])
    return products


def select_rows(matrix: Tensor, rows: slice | Int[Tensor, " R"]) -> Tensor:
    """Some rows of a matrix; `index_select` takes a fifth of the time of an index in brackets."""
    return matrix[rows] if isinstance(rows, slice) else matrix.index_select(0, rows)


def name_logits(
    z: Float[Tensor, "T d"],
    cosine: Float[Tensor, "T N"],
    name: Int[Tensor, "T N"],
    anchors: Float[Tensor, "C d"],
    sums: NameSums,
    origin: Float[Tensor, " d"],
) -> NameLogits:
    """A (z . mu - |mu|^2 / 2) of the start and of the present mean mu of each top name, a = NAME_SCALE.

    `cosine` is the product of image and text; `origin` is where the mean text of all names would start.
    """
    rows, place = chosen_rows(name, len(anchors))
    means = name_means(anchors, sums, origin, rows)
    start = (z @ origin).unsqueeze(1) + TEXT_SHARE * cosine
    learned = chosen_products(z, means.mean, place)
    at_start, now = (
        NAME_SCALE * (dot - length[place] / 2) for dot, length in ((start, means.start_length), (learned, means.length))
    )
    return NameLogits(at_start, now, sums.images[name])


def energy_gain(top: TopNames, image: NameLogits) -> Float[Tensor, " T"]:
    """By how much image space raises the energy of the top names."""
    return torch.logsumexp(top.logit + image.learned, dim=1) - torch.logsumexp(top.logit, dim=1)
