"""What the detector has learned, and how a state takes in samples.

A state changes only at fixed sample counts. Until then samples are pending, so that a score does not depend on how the
stream is divided into calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.pooled.evidence import LogitMoments
from unseen.detectors.pooled.likelihood import Likelihood, PredictionSums, fit_likelihood
from unseen.detectors.pooled.names import TOP, NameShapes, NameSums, name_shapes
from unseen.detectors.pooled.sides import Direction, SideSums, fit_direction, side_weights
from unseen.detectors.state import map_state
from unseen.labels import Examples, LabelSpace

INTERVAL = 256  # most samples between two updates
EXAMPLE_WEIGHT = 2.0  # images of the stream that an example is worth: its name is sure
FIRST_DIRECTION = 32  # samples before which a direction in image space says nothing


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


class Pending(NamedTuple):
    """Samples since the last update, in the first `size` rows."""

    size: Int[Tensor, ""]
    samples: SampleRows

    @classmethod
    def none(cls, labels: LabelSpace) -> Pending:
        """Return room for as many samples as can be pending."""

        def claims(names: int) -> Claims:
            shape = INTERVAL, min(TOP, names)
            return Claims(torch.zeros(shape, dtype=torch.int64), labels.id_anchors.new_zeros(shape))

        value = torch.zeros(INTERVAL, dtype=torch.float64)
        known, negative = claims(len(labels.names)), claims(len(labels.negatives))
        samples = SampleRows(labels.id_anchors.new_zeros(INTERVAL, labels.dim), value, value, known, negative)
        return cls(torch.zeros((), dtype=torch.int64), samples)

    def with_more(self, more: SampleRows) -> Pending:
        """Return the pending samples and `more` behind them."""
        rows = self.size + torch.arange(len(more.z), device=more.z.device)
        samples = map_state(lambda kept, new: kept.index_copy(0, rows, new), self.samples, more)
        return Pending(self.size + len(more.z), samples)


class Sums(NamedTuple):
    """Sums over all samples but the pending ones."""

    known: NameSums
    negative: NameSums
    votes: Float[Tensor, " K"]  # how often each known name was the nearest, by how likely the image was known
    sides: SideSums
    predictions: PredictionSums

    @classmethod
    def empty(cls, labels: LabelSpace) -> Sums:
        """Return the sums before the first sample: those of the examples, where there are some."""
        names = seeded(NameSums.empty(labels.id_anchors), labels.examples), NameSums.empty(labels.ood_anchors)
        votes = torch.zeros(len(labels.names), dtype=torch.float64)
        return cls(*names, votes, SideSums.empty(labels.dim), PredictionSums.empty())

    def updated(self, samples: SampleRows, seen: Int[Tensor, ""]) -> Sums:
        """Return the sums after `samples`; `seen` came before them."""
        weight = side_weights(samples.margin)
        predictions = self.predictions
        if int(seen) >= FIRST_DIRECTION:
            predictions = predictions.updated(weight, samples.predicted, seen)
        return Sums(
            self.known.updated(*samples.known, samples.z),
            self.negative.updated(*samples.negative, samples.z),
            self.votes.index_add(0, samples.known.name[:, 0], weight[1]),
            self.sides.updated(weight, samples.z.double(), samples.margin),
            predictions,
        )


def seeded(sums: NameSums, examples: Examples | None) -> NameSums:
    """Return sums of names to which labelled examples have been added."""
    if examples is None:
        return sums
    weight = sums.total.new_full((len(examples), 1), EXAMPLE_WEIGHT)
    return sums.updated(examples.label.unsqueeze(1), weight, examples.z.to(sums.total))


class Fitted(NamedTuple):
    """What scores are made with, computed from the sums at the last update."""

    known: NameShapes
    negative: NameShapes
    direction: Direction
    likelihood: Likelihood

    @classmethod
    def of(cls, sums: Sums, seen: int, labels: LabelSpace) -> Fitted:
        """Return what follows from the sums."""
        unknown_mean, known_mean = sums.sides.means
        known = name_shapes(labels.id_anchors, sums.known, known_mean, text_mean(labels))
        negative = name_shapes(labels.ood_anchors, sums.negative, unknown_mean, text_mean(labels))
        if seen < FIRST_DIRECTION:
            return cls(known, negative, Direction.none(sums.sides.image), Likelihood.none(sums.votes))
        direction = fit_direction(sums.sides)
        return cls(known, negative, direction, fit_likelihood(sums.predictions, direction.images, seen))


def text_mean(labels: LabelSpace) -> Float[Tensor, " d"]:
    """Return the mean of all names."""
    known, negative = labels.id_anchors, labels.ood_anchors
    return (known.sum(0) + negative.sum(0)) / (len(known) + len(negative))


class PooledState(NamedTuple):
    """Everything the detector has learned."""

    seen: Int[Tensor, ""]
    moments: LogitMoments  # sums over the samples that set the baseline
    sums: Sums
    fitted: Fitted
    pending: Pending

    @classmethod
    def start(cls, labels: LabelSpace) -> PooledState:
        """Return the state before the first sample."""
        zero, sums = torch.zeros((), dtype=torch.float64), Sums.empty(labels)
        sums = map_state(lambda part: part.to(labels.id_anchors.device), sums)
        fresh = cls(zero.long(), LogitMoments(zero, zero, zero), sums, Fitted.of(sums, 0, labels), Pending.none(labels))
        return map_state(lambda part: part.to(labels.id_anchors.device), fresh)

    @property
    def until_update(self) -> int:
        """Return how many samples may come before the next update: a sixteenth of the stream, or INTERVAL."""
        seen = int(self.seen)
        interval = min(INTERVAL, 1 << max(0, seen.bit_length() - 4))
        return interval - seen % interval

    def after(self, samples: SampleRows, labels: LabelSpace) -> PooledState:
        """Return the state after `samples`, at most as many as `until_update`."""
        is_due = len(samples.z) == self.until_update
        more = self._replace(seen=self.seen + len(samples.z), pending=self.pending.with_more(samples))
        return more.updated(labels) if is_due else more

    def updated(self, labels: LabelSpace) -> PooledState:
        """Return the state that has taken in its pending samples."""
        count = int(self.pending.size)
        sums = self.sums
        if count:
            sums = sums.updated(map_state(lambda rows: rows[:count], self.pending.samples), self.seen - count)
        pending = self.pending._replace(size=torch.zeros_like(self.pending.size))
        return self._replace(sums=sums, fitted=Fitted.of(sums, int(self.seen), labels), pending=pending)
