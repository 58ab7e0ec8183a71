"""What the detector has learned, and how a state takes in samples.

A state changes only at fixed sample counts. Until then samples are pending, so that a score does not depend on how the
stream is divided into calls.
"""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.names import Looks, NameSums, NearestNames
from unseen.detectors.pooled.sides import Direction, Likelihood, PredictionSums, SideSums, side_weights
from unseen.detectors.state import OldPlaces, map_state, rows_by_old_place
from unseen.labels import Examples, LabelSpace


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

    @classmethod
    def empty(cls, labels: LabelSpace, count: int) -> SampleRows:
        """Room for samples."""

        def claims(names: int) -> Claims:
            shape = count, min(POOLED.top, names)
            return Claims(like.new_zeros(shape, dtype=torch.int64), like.new_zeros(shape))

        like = labels.id_anchors
        value, z = like.new_zeros(count, dtype=torch.float64), like.new_zeros(count, labels.dim)
        return cls(z, value, value, claims(len(labels.names)), claims(len(labels.negatives)))


class SampleBlock(NamedTuple):
    """Features of consecutive samples with their nearest names and their frozen log-odds."""

    z: Float[Tensor, "T d"]
    nearest: NearestNames
    log_odds: Float[Tensor, " T"]  # of the known names against the negatives, by the frozen text

    def rows(self, rows: slice) -> SampleBlock:
        """Some of the samples."""
        return map_state(lambda part: part[rows], self)


class Pending(NamedTuple):
    """Samples since the last update: the first `size` of the rows."""

    size: Int[Tensor, ""]
    samples: SampleRows

    @classmethod
    def none(cls, labels: LabelSpace) -> Pending:
        """Room for as many samples as can be pending."""
        return cls(torch.zeros((), dtype=torch.int64), SampleRows.empty(labels, POOLED.interval))

    def and_more(self, more: SampleRows) -> SampleRows:
        """The pending samples and some behind them."""
        size = int(self.size)
        return map_state(lambda rows, new: torch.cat([rows[:size], new]), self.samples, more) if size else more

    def after(self, more: SampleRows) -> Pending:
        """The pending samples when some more have come."""
        start, stop = int(self.size), int(self.size) + len(more.z)
        rows = map_state(lambda rows, new: torch.cat([rows[:start], new, rows[stop:]]), self.samples, more)
        return Pending(torch.full_like(self.size, stop), rows)


class LearnedImages(NamedTuple):
    """Which images the stream has taught: their tags by slot, 0 where there is none.

    An image that comes again is no new evidence: learned each time, one that was once taken for unknown is taken for it
    more surely every time. So it is judged like any other, and learned once.
    """

    tags: Int[Tensor, " SLOTS"]

    @classmethod
    def none(cls, device: torch.device | None = None) -> LearnedImages:
        """The memory before the first image."""
        return cls(torch.zeros(POOLED.slots, dtype=torch.int32, device=device))

    def are_new(self, found: Digests) -> Bool[Tensor, " B"]:
        """Which images were neither learned before nor stand earlier in the same batch."""
        same = (found.slot.unsqueeze(1) == found.slot) & (found.tag.unsqueeze(1) == found.tag)
        return (self.tags[found.slot] != found.tag) & ~same.tril(-1).any(1)

    def with_images(self, found: Digests) -> LearnedImages:
        """The memory after some images; of those with one slot the largest tag stays, on every device."""
        return LearnedImages(self.tags.scatter_reduce(0, found.slot, found.tag, "amax", include_self=False))


class Digests(NamedTuple):
    """Where an image is remembered, and what distinguishes it there; never 0."""

    slot: Int[Tensor, " B"]
    tag: Int[Tensor, " B"]

    @classmethod
    def of(cls, z: Float[Tensor, "B d"]) -> Digests:
        """A hash of the rounded features of each image."""
        rounded = (z[:, : POOLED.digest_features].double() / POOLED.step).round().long()
        mixed = (rounded * multipliers(z.device)[: rounded.shape[1]]).sum(1)  # modulo 2^64
        mixed = (mixed ^ (mixed >> 29)) * as_int64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio spreads the bits
        return cls((mixed >> 20) & (POOLED.slots - 1), (((mixed >> 37) & 0x3FFFFFF) + 1).int())


@cache
def multipliers(device: torch.device) -> Int[Tensor, " F"]:
    """An odd number for each feature."""
    drawn = random.Random(0)  # the same numbers in every version of Python
    return torch.tensor([as_int64(drawn.getrandbits(64) | 1) for _ in range(POOLED.digest_features)], device=device)


def as_int64(number: int) -> int:
    """An integer modulo 2^64 as int64 holds it."""
    return number - 2**64 if number >= 2**63 else number


class Sums(NamedTuple):
    """Sums over all samples but the pending ones."""

    known: NameSums
    negative: NameSums
    votes: Float[Tensor, "2 K"]  # how often each known name was nearest to an image: one not surely known, a known one
    sides: SideSums
    predictions: PredictionSums

    @classmethod
    def empty(cls, labels: LabelSpace) -> Sums:
        """The sums before the first sample: those of the examples, where there are some."""
        known, negative = (NameSums.empty(anchors) for anchors in (labels.id_anchors, labels.ood_anchors))
        if labels.examples is not None:
            add_examples(known, labels.examples)
        device = labels.id_anchors.device
        votes = torch.zeros(2, len(labels.names), dtype=torch.float64, device=device)
        return cls(known, negative, votes, SideSums.empty(labels.dim, device), PredictionSums.empty(device))

    def add_(self, samples: SampleRows, seen: int) -> None:
        """Add samples, before which `seen` came, to these sums, which must be the caller's own."""
        weight = side_weights(samples.margin)
        self.known.add_(*samples.known, samples.z)
        self.negative.add_(*samples.negative, samples.z)
        unsure = torch.sigmoid(POOLED.sure - samples.margin)
        self.votes.index_add_(1, samples.known.name[:, 0], torch.stack([unsure, weight[1]]))
        self.sides.add_(weight, samples.z, samples.margin)
        if seen >= POOLED.first_direction:
            self.predictions.add_(weight, samples.predicted, seen)

    def transferred(self, before: LabelSpace, after: LabelSpace) -> Sums:
        """The sums by the words of another label space; a new word has claimed no image, its popularity is the mean."""
        places, fresh = OldPlaces.of(after, before), Sums.empty(after)
        no_votes = self.votes.new_zeros(len(before.negatives))
        known, negative = (
            map_state(
                lambda one, other, start, side=side: rows_by_old_place(one, other, side, fresh=start),
                *(self.known, self.negative, start),
            )
            for side, start in zip(places, (fresh.known, fresh.negative), strict=True)
        )
        means = self.votes.mean(1, keepdim=True).expand_as(fresh.votes)  # else promotions would make old names popular
        votes = [
            rows_by_old_place(row, no_votes, places.known, fresh=start)
            for row, start in zip(self.votes, means, strict=True)
        ]
        return self._replace(known=known, negative=negative, votes=torch.stack(votes))


def add_examples(sums: NameSums, examples: Examples) -> None:
    """Add labelled examples to the sums of names."""
    weight = sums.total.new_full((len(examples), 1), POOLED.example_weight)
    sums.add_(examples.label.unsqueeze(1), weight, examples.z.to(sums.total))


class Fitted(NamedTuple):
    """What scores are made with, computed from the sums at the last update."""

    known: Looks
    negative: Looks
    direction: Direction
    likelihood: Likelihood
    popularity: Float[Tensor, " K"]  # log of how much more often images not surely known were nearest to each name
    votes: Float[Tensor, " K"]  # log(1 + votes / few_votes), of known images

    @classmethod
    def of(cls, sums: Sums, seen: int, labels: LabelSpace) -> Fitted:
        """What follows from the sums."""
        anchors = labels.id_anchors
        # names that have examples lie where images are from the first sample on, so that the others must start there
        start = None if labels.examples is None else labels.examples.mean
        negative, known = sums.sides.means(start).to(anchors.dtype) - POOLED.text_share * labels.text_mean
        looks = Looks.of(anchors, sums.known, known), Looks.of(labels.ood_anchors, sums.negative, negative)
        votes = popularity(sums.votes[0]), torch.log1p(sums.votes[1] / POOLED.few_votes)
        if seen < POOLED.first_direction:
            pool = Direction.none(labels.dim, anchors.device), Likelihood.none(anchors.device)
            return cls(*looks, *pool, *votes)
        direction = Direction.of(sums.sides)
        likelihood = Likelihood.of(sums.predictions, direction.images, seen)
        return cls(*looks, direction, likelihood, *votes)


def popularity(votes: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """The log of how many more votes each name has than the names have on average."""
    return torch.log((votes + POOLED.few_votes) / (votes.mean() + POOLED.few_votes))


class PooledState(NamedTuple):
    """Everything the detector has learned; counts are in host memory, the rest where the label space is."""

    seen: Int[Tensor, ""]
    sums: Sums
    fitted: Fitted
    learned: LearnedImages
    pending: Pending

    @classmethod
    def start(cls, labels: LabelSpace) -> PooledState:
        """The state before the first sample."""
        device, sums = labels.id_anchors.device, Sums.empty(labels)
        seen, learned = torch.zeros((), dtype=torch.int64), LearnedImages.none(device)
        return cls(seen, sums, Fitted.of(sums, 0, labels), learned, Pending.none(labels))

    @property
    def until_update(self) -> int:
        """How many samples may come before the next update: a sixteenth of the stream, or `interval`."""
        seen = int(self.seen)
        interval = min(POOLED.interval, 1 << max(0, seen.bit_length() - 4))
        return interval - seen % interval

    def learned_from(self, samples: SampleRows, labels: LabelSpace, *, owned: bool = False) -> PooledState:
        """The state after samples: taken in where an update is due, else pending.

        Sums that are `owned` by the caller are written to.
        """
        seen, is_due = self.seen + len(samples.z), len(samples.z) >= self.until_update
        if not is_due:
            return self._replace(seen=seen, pending=self.pending.after(samples))
        return self._replace(seen=seen)._taken_in(self.pending.and_more(samples), labels, owned=owned)

    def updated(self, labels: LabelSpace) -> PooledState:
        """The state that has taken in its pending samples."""
        size = int(self.pending.size)
        return self._taken_in(map_state(lambda rows: rows[:size], self.pending.samples), labels)

    def _taken_in(self, samples: SampleRows, labels: LabelSpace, *, owned: bool = False) -> PooledState:
        seen, found = int(self.seen), Digests.of(samples.z)
        new = self.learned.are_new(found).nonzero().squeeze(1)
        sums = self.sums if owned else map_state(torch.clone, self.sums)
        sums.add_(map_state(lambda part: part[new], samples), seen - len(samples.z))
        pending = self.pending._replace(size=torch.zeros_like(self.pending.size))
        return self._replace(
            sums=sums, fitted=Fitted.of(sums, seen, labels), learned=self.learned.with_images(found), pending=pending
        )
