"""What the detector has learned, and how a state takes in samples.

A state changes only at fixed sample counts. Until then samples are pending, so that a score does not depend on how the
stream is divided into calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.pooled.distinction import Distinction
from unseen.detectors.pooled.evidence import LogitMoments
from unseen.detectors.pooled.likelihood import Likelihood, PredictionSums, fit_likelihood
from unseen.detectors.pooled.names import TEXT_SHARE, TOP, NameSums, NearestNames
from unseen.detectors.pooled.repeats import LearnedImages, digests
from unseen.detectors.pooled.sides import Direction, SideSums, fit_direction, side_weights
from unseen.detectors.state import flatten, map_state
from unseen.labels import Examples, LabelSpace

INTERVAL = 256  # most samples between two updates
BASELINE_SAMPLES = 256  # samples that set the baseline; then it stays, so that margins can be compared
LATEST = 16  # samples by themselves that are pending in a smaller place, which costs less to copy
EXAMPLE_WEIGHT = 2.0  # images of the stream that an example is worth: its name is sure
MANY = 1 << 20  # samples from which on the direction is solved for in float64 alone
FEW_VOTES = 5.0  # added to all votes before their logs are compared: numbers of votes differ by that much by accident
FEW = 4096  # samples up to which conjugate gradients take less time than a factor
FIRST_DIRECTION = 32  # samples before which no direction in image space is fitted


class Claims(NamedTuple):
    """How much of each image the nearest names of one side claim."""

    name: Int[Tensor, "B N"]
    share: Float[Tensor, "B N"]


class SampleRows(NamedTuple):
    """What each sample will teach."""

    z: Float[Tensor, "B d"]
    margin: Float[Tensor, " B"]
    predicted: Float[Tensor, " B"]
    known: Claims
    negative: Claims


class SampleBlock(NamedTuple):
    """Features of consecutive samples with their nearest names and their frozen evidence."""

    z: Float[Tensor, "T d"]
    nearest: NearestNames
    evidence: Float[Tensor, " T"]  # of the frozen text
    baseline: Float[Tensor, " T"]
    clarity: Float[Tensor, " T"]

    def rows(self, rows: slice) -> SampleBlock:
        """Some of the samples."""
        if rows.start == 0 and rows.stop >= len(self.z):
            return self
        return map_state(lambda part: part[rows], self)


class Pending(NamedTuple):
    """Samples since the last update: the first in `samples`, the last `latest_size` of them packed in `latest`."""

    size: Int[Tensor, ""]
    samples: SampleRows
    latest_size: Int[Tensor, ""]
    latest: Float[Tensor, "LATEST W"]

    @classmethod
    def none(cls, labels: LabelSpace) -> Pending:
        """Room for as many samples as can be pending."""
        zero = torch.zeros((), dtype=torch.int64)
        return cls(zero, empty_rows(labels, INTERVAL), zero, packed(empty_rows(labels, LATEST)))

    def all(self, size: int, latest: int, more: SampleRows | None = None) -> SampleRows:
        """The `size` pending samples, of which `latest` are in `latest`, and `more` behind them."""
        parts = [map_state(lambda rows: rows[: size - latest], self.samples)] if size > latest else []
        parts += [self.unpacked(self.latest[:latest])] if latest else []
        parts += [] if more is None else [more]
        return parts[0] if len(parts) == 1 else map_state(lambda *rows: torch.cat(rows), *parts)

    def unpacked(self, rows: Float[Tensor, "B W"]) -> SampleRows:
        """Samples that were packed."""
        widths = [part[0].numel() for part in flatten(self.samples).values()]
        columns = iter(rows.split(widths, dim=1))
        return map_state(lambda like: next(columns).to(like.dtype).reshape(-1, *like.shape[1:]), self.samples)


def packed(rows: SampleRows) -> Float[Tensor, "B W"]:
    """Each sample as one row of numbers, which are exact: so that one copy is enough to add a sample."""
    return torch.cat([part.double().reshape(len(part), -1) for part in flatten(rows).values()], dim=1)


def empty_rows(labels: LabelSpace, count: int) -> SampleRows:
    """Room for samples."""

    def claims(names: int) -> Claims:
        shape = count, min(TOP, names)
        return Claims(like.new_zeros(shape, dtype=torch.int64), like.new_zeros(shape))

    like = labels.id_anchors
    value, z = like.new_zeros(count, dtype=torch.float64), like.new_zeros(count, labels.dim)
    return SampleRows(z, value, value, claims(len(labels.names)), claims(len(labels.negatives)))


def with_rows_at(rows: Tensor, more: Tensor, start: int) -> Tensor:
    """A copy of `rows` with `more` from the row `start` on."""
    if rows.is_cuda:
        return torch.cat([rows[:start], more, rows[start + len(more) :]])
    copied = rows.numpy().copy()  # NumPy copies few rows in half the time of torch
    copied[start : start + more.shape[0]] = more.numpy()
    return torch.from_numpy(copied)


class Sums(NamedTuple):
    """Sums over all samples but the pending ones."""

    known: NameSums
    negative: NameSums
    votes: Float[Tensor, " K"]  # how often each known name was the nearest, by how likely the image was known
    sides: SideSums
    predictions: PredictionSums

    @classmethod
    def empty(cls, labels: LabelSpace) -> Sums:
        """The sums before the first sample: those of the examples, where there are some."""
        known, negative = (NameSums.empty(anchors) for anchors in (labels.id_anchors, labels.ood_anchors))
        known, votes = sums_with_examples(known, labels.examples), torch.zeros(len(labels.names), dtype=torch.float64)
        return cls(known, negative, votes, SideSums.empty(labels.dim), PredictionSums.empty())

    def updated(self, samples: SampleRows, seen: int | Int[Tensor, ""]) -> Sums:
        """The sums after `samples`; `seen` came before them."""
        weight = side_weights(samples.margin)
        names = self.known.updated(*samples.known, samples.z), self.negative.updated(*samples.negative, samples.z)
        votes = self.votes.index_add(0, samples.known.name[:, 0], weight[1])
        sides = self.sides.updated(weight, samples.z, samples.margin)
        if int(seen) < FIRST_DIRECTION:
            return Sums(*names, votes, sides, map_state(torch.clone, self.predictions))
        return Sums(*names, votes, sides, self.predictions.updated(weight, samples.predicted, seen))

    def add_(self, samples: SampleRows, seen: int) -> Sums:
        """Add samples to these sums, which must be the caller's own."""
        weight = side_weights(samples.margin)
        self.known.add_(*samples.known, samples.z)
        self.negative.add_(*samples.negative, samples.z)
        self.votes.index_add_(0, samples.known.name[:, 0], weight[1])
        self.sides.add_(weight, samples.z, samples.margin)
        if seen >= FIRST_DIRECTION:
            self.predictions.add_(weight, samples.predicted, seen)
        return self


def sums_with_examples(sums: NameSums, examples: Examples | None) -> NameSums:
    """Sums of names to which labelled examples have been added."""
    if examples is None:
        return sums
    weight = sums.total.new_full((len(examples), 1), EXAMPLE_WEIGHT)
    return sums.updated(examples.label.unsqueeze(1), weight, examples.z.to(sums.total))


class Fitted(NamedTuple):
    """What scores are made with, computed from the sums at the last update."""

    known: Float[Tensor, " d"]  # where the mean text of all names would start on the known side
    negative: Float[Tensor, " d"]
    direction: Direction
    likelihood: Likelihood
    popularity: Float[Tensor, " K"]  # log of how much more often each name was the nearest than names are on average
    votes: Float[Tensor, " K"]  # log(1 + votes / FEW_VOTES)
    distinction: Distinction  # without rows where names have no examples

    @classmethod
    def of(cls, sums: Sums, seen: int, labels: LabelSpace) -> Fitted:
        """What follows from the sums."""
        anchors = labels.id_anchors
        # names that have examples lie where images are from the first sample on, so that the others must start there
        start = None if labels.examples is None else labels.examples.mean
        negative, known = sums.sides.means(start).to(anchors.dtype) - TEXT_SHARE * labels.text_mean
        votes = popularity(sums.votes), torch.log1p(sums.votes / FEW_VOTES)
        if seen < FIRST_DIRECTION:
            pool = Direction.none(sums.sides.image), Likelihood.none(sums.votes)
            return cls(known, negative, *pool, *votes, Distinction.none(labels))
        dtype = anchors.dtype if seen < MANY else torch.float64
        few = seen < FEW and not anchors.is_cuda and dtype != torch.float64
        direction = fit_direction(sums.sides, dtype=dtype, few=few)
        likelihood = fit_likelihood(sums.predictions, direction.images, seen)
        distinction = Distinction.of(sums.sides, sums.known, known, labels)
        return cls(known, negative, direction, likelihood, *votes, distinction)


def popularity(votes: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """The log of how much more often each name was the nearest than the names are on average."""
    return torch.log((votes + FEW_VOTES) / (votes.mean() + FEW_VOTES))


class PooledState(NamedTuple):
    """Everything the detector has learned; counts are in host memory, the rest where the label space is."""

    seen: Int[Tensor, ""]
    moments: LogitMoments  # sums over the samples that set the baseline
    baseline: Float[Tensor, ""]  # of samples from then on
    sums: Sums
    fitted: Fitted
    learned: LearnedImages
    pending: Pending

    @classmethod
    def start(cls, labels: LabelSpace) -> PooledState:
        """The state before the first sample."""
        zero, sums = torch.zeros((), dtype=torch.float64), Sums.empty(labels)
        sums = map_state(lambda part: part.to(labels.id_anchors.device), sums)
        fresh = cls(
            *(zero.long(), LogitMoments(zero, zero, zero), zero, sums, Fitted.of(sums, 0, labels)),
            *(LearnedImages.none(), Pending.none(labels)),
        )
        on_device = map_state(lambda part: part.to(labels.id_anchors.device), fresh)
        pending = on_device.pending._replace(size=fresh.pending.size, latest_size=fresh.pending.latest_size)
        return on_device._replace(seen=fresh.seen, pending=pending)

    @property
    def until_update(self) -> int:
        """How many samples may come before the next update."""
        return until_update(int(self.seen))

    def updated(self, labels: LabelSpace) -> PooledState:
        """The state that has taken in its pending samples."""
        count, latest, seen = int(self.pending.size), int(self.pending.latest_size), int(self.seen)
        sums, learned = self.sums, self.learned
        if count:
            samples, learned = new_samples(self.pending.all(count, latest), learned)
            sums = sums.updated(samples, seen - count)
        none = torch.zeros_like(self.pending.size)
        pending = self.pending._replace(size=none, latest_size=none)
        return self._replace(sums=sums, fitted=Fitted.of(sums, seen, labels), pending=pending, learned=learned)


def new_samples(samples: SampleRows, learned: LearnedImages) -> tuple[SampleRows, LearnedImages]:
    """The samples whose images were not learned before, and the memory with all of them."""
    found = digests(samples.z)
    rows, learned = learned.are_new(found).nonzero().squeeze(1), learned.with_images(found)
    return (samples if len(rows) == len(samples.z) else map_state(lambda part: part[rows], samples)), learned


def until_update(seen: int) -> int:
    """How many samples may come before the next update: a sixteenth of the stream, or INTERVAL."""
    interval = min(INTERVAL, 1 << max(0, seen.bit_length() - 4))
    return interval - seen % interval
