"""The unknown images of a session in groups, each with exemplars and suggested names; numbers stay with a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from unseen.discover.clustering import average_linkage, describe_images
from unseen.discover.naming import Families, Suggestion, Vocabulary
from unseen.errors import StateError
from unseen.reservoir import KeptImages, Reservoir
from unseen.session import Session

SMALLEST = 3  # distinct images of a group
DUPLICATE = 0.99  # raw cosine of two pictures of the same thing: copies, frames, other sizes
EXEMPLARS = 9
CENTRAL = 16  # images of a group that are asked for its name
RECENT = 512  # images of the stream in which growth is counted
FAST = 8  # new images of a group in that window before it may be called growing


@dataclass(frozen=True)
class Group:
    """Unknown images that belong together."""

    number: int  # stays with the group as the stream goes on
    size: int  # kept images
    distinct: int  # of these, without duplicates
    tightness: float  # mean cosine to the centre, all less the mean image: 1 for copies of one image
    first: int  # number of the first and of the last image in the stream, from 1
    last: int
    growing: bool  # many more of them came of late than before
    nearest: str  # the known name that most of them are nearest to
    looks_known: bool  # a known name describes them better than any other word: known images that were rejected?
    exemplars: tuple[str, ...]  # keys of the most central images, duplicates left out
    keys: tuple[str, ...]  # of all images, most central first
    suggestions: tuple[Suggestion, ...]

    def row(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        return asdict(self)


class Grouping(NamedTuple):
    """The groups of a session, largest first, and the session that knows their numbers.

    Groups that look like a known name come last.
    """

    groups: list[Group]
    session: Session
    unknown: int  # kept unknown images
    grouped: int  # of these in a group that is shown


def group(session: Session, vocabulary: Vocabulary | None = None, *, smallest: int = SMALLEST) -> Grouping:
    """The unknown images that a session has kept, in groups; groups that were seen before keep their numbers.

    `vocabulary` is where names are suggested from, the negatives of the label space by default.

    >>> from unseen import demo
    >>> session = Session(demo.load().space)
    >>> _ = session.observe(demo.load().z[-60:])
    >>> len(group(session).groups) > 1
    True
    """
    reservoir = session.reservoir.with_recent()
    check_has_unknown(reservoir, int(session.snapshot.tally.seen))
    labels, images = session.detector.labels, reservoir.kept
    words = (vocabulary or Vocabulary.of_space(labels)).with_names(labels)
    rows = (~images.known).nonzero().flatten()
    unknown, mean = images.select(rows), images.mean
    cluster = average_linkage(describe_images(unknown.features, mean, words.vectors))
    clusters = cluster_members(unknown, cluster, smallest)
    numbers, next_group = number_clusters(clusters, unknown.group, reservoir.next_group)
    column = images.group.clone()
    column[rows] = 0
    for number, members in zip(numbers, clusters, strict=True):
        column[rows[members]] = number
    kept = reservoir.with_images(replace(images, group=column), next_group=next_group)
    shown = [pair for pair in zip(numbers, clusters, strict=True) if pair[0] not in reservoir.dismissed]
    groups = [by_centrality(unknown.select(members), mean) for _, members in shown]
    shares = words.shares([normalize(one.images.features[:CENTRAL] - mean, dim=-1) for one in groups])
    families, seen = Families(words.words[len(labels.names) :]), int(session.snapshot.tally.seen)
    found = [
        describe_group(number, one, share, words.words, families, seen)
        for (number, _), one, share in zip(shown, groups, shares, strict=True)
    ]
    moved = session.at(reservoir=kept)
    ranked = sorted(found, key=lambda one: (one.looks_known, -one.size))
    return Grouping(ranked, moved, len(unknown), sum(one.size for one in found))


def check_has_unknown(reservoir: Reservoir, seen: int) -> None:
    """Refuse a reservoir without an unknown image, and say why there is none."""
    if bool((~reservoir.images.known).any()):
        return
    if not reservoir.unknown:
        raise StateError("expected a session that keeps images, got one with keep=0; start it with keep=8192")
    if seen and reservoir.since == seen:
        raise StateError(
            f"expected a state with kept images, got one of {seen:,} images without a reservoir, as an earlier version "
            "wrote it; let it observe more images, or group a features folder"
        )
    raise StateError(f"expected unknown images, got none among {seen:,}; observe more images first")


def cluster_members(images: KeptImages, cluster: Int[Tensor, " n"], smallest: int) -> list[Int[Tensor, " m"]]:
    """The members of each cluster with enough distinct images, in order of arrival."""
    ids, counts = cluster.unique(return_counts=True)
    members = [(cluster == one).nonzero().flatten() for one in ids[counts >= smallest].tolist()]
    return [rows for rows in members if len(distinct(images.features[rows])) >= smallest]


def distinct(z: Float[Tensor, "n d"]) -> Int[Tensor, " m"]:
    """The rows that are no copy of an earlier row."""
    is_copy = (z @ z.T > DUPLICATE).tril(diagonal=-1).any(1)
    return (~is_copy).nonzero().flatten()


def number_clusters(
    clusters: Sequence[Int[Tensor, " m"]], before: Int[Tensor, " n"], next_number: int
) -> tuple[list[int], int]:
    """A number for each cluster and the next free one; a cluster goes on with the number most of it had.

    The pair of a cluster and an earlier group that share most images is taken first; either may be used once, and
    only where half of one of the two is in the other.
    """
    sizes = Counter(before[before > 0].tolist())
    shared = [
        (count, number, place)
        for place, rows in enumerate(clusters)
        for number, count in Counter(before[rows][before[rows] > 0].tolist()).items()
        if 2 * count >= min(len(rows), sizes[number])
    ]
    numbers: dict[int, int] = {}
    for _, number, place in sorted(shared, key=lambda one: (-one[0], one[1])):
        if place not in numbers and number not in numbers.values():
            numbers[place] = number
    fresh = iter(range(next_number, next_number + len(clusters)))
    found = [numbers[place] if place in numbers else next(fresh) for place in range(len(clusters))]
    return found, max([next_number, *(number + 1 for number in found)])


class CentralImages(NamedTuple):
    """The images of a group, the most central first, and their mean cosine to the centre."""

    images: KeptImages
    tightness: float


def by_centrality(images: KeptImages, mean: Float[Tensor, " d"]) -> CentralImages:
    """The images of a group in the order of their cosines to its centre, all less the mean image."""
    centred = normalize(images.features - mean, dim=-1)
    cosine = centred @ normalize(centred.mean(0), dim=0)
    return CentralImages(images.select(cosine.argsort(descending=True, stable=True)), float(cosine.mean()))


def describe_group(
    number: int, group: CentralImages, shares: Float[Tensor, " w"], words: Sequence[str], families: Families, seen: int
) -> Group:
    """What a group looks like; `words` are the known names, then those of `families`, each with its share."""
    images, called, places = group.images, group.images.names(), group.images.place
    unlike = distinct(images.features).tolist()
    known, others = shares.split([len(words) - len(families.words), len(families.words)])
    return Group(
        number,
        len(images),
        len(unlike),
        round(group.tightness, 4),
        int(places.min()) + 1,
        int(places.max()) + 1,
        is_growing(places, seen),
        words[Counter(images.label[places.argsort()].tolist()).most_common(1)[0][0]],
        not len(others) or bool(known.max() > others.max()),
        tuple(called[row] for row in unlike[:EXEMPLARS]),
        tuple(called),
        families.suggest(others),
    )


def is_growing(place: Int[Tensor, " n"], seen: int) -> bool:
    """Whether the latest images hold many more of a group than their share of the stream: four deviations.

    Of a group that comes at a constant rate, each image is among the latest with probability RECENT / seen. Soon after
    the first RECENT images nearly all are, so that no group is growing yet.
    """
    late: Bool[Tensor, " n"] = place >= seen - RECENT
    share = min(1.0, RECENT / seen) if seen else 1.0
    came, expected = int(late.sum()), len(place) * share
    return came >= FAST and came > expected + 4 * (expected * (1 - share)) ** 0.5


def with_numbers(reservoir: Reservoir, numbers: Mapping[int, int], next_group: int) -> Reservoir:
    """A reservoir whose images have the group that `numbers` gives their place, 0 where it gives none."""
    images = reservoir.images
    column = torch.tensor([numbers.get(place, 0) for place in images.place.tolist()], dtype=torch.int64)
    return reservoir.with_images(replace(images, group=column), next_group=next_group)
