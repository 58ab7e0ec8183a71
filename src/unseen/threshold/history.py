"""What a threshold remembers of a stream: margins counted at nodes, and what was fitted to them last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.threshold.clear import ClearImages
from unseen.threshold.mixture import MixtureFit, fit_mixture
from unseen.threshold.nodes import NODES, counts, interpolate_rows

RECENT = 512.0  # samples after which a margin counts 1 / e for the present share of known images
TYPICAL_MEAN, TYPICAL_DEVIATION = 3.0, 7.0  # of the margins of a mixed stream, in the units that the mixtures know


class Units(NamedTuple):
    """How margins are carried into the units that the mixtures know: (margin - shift) / scale."""

    shift: Float[Tensor, ""]
    scale: Float[Tensor, ""]

    @classmethod
    def nats(cls) -> Units:
        """The units of a detector that derives its baseline."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def of(cls, margins: Float[Tensor, " n"]) -> Units:
        """Units in which these margins have the mean and the deviation of a typical stream."""
        scale = margins.std().clamp(min=1e-6) / TYPICAL_DEVIATION
        return cls(margins.mean() - TYPICAL_MEAN * scale, scale)

    def apply(self, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Margins in these units."""
        return (margin.detach().cpu().double() - self.shift) / self.scale


class MarginHistory(NamedTuple):
    """What the stream has shown, and what follows from it."""

    seen: Int[Tensor, ""]
    counts: Float[Tensor, " N"]  # of margins at the nodes of the mixtures, each times its place in the stream
    recent: Float[Tensor, " N"]  # the same, of the latest few hundred: for the share of known images
    clear: ClearImages
    ring: Float[Tensor, " W"]  # the latest margins, where their units are not known; else empty
    waiting: Int[Tensor, ""]  # how many margins came since the last update and are in no other sum
    pending: Float[Tensor, "E 2"]  # those margins, and the clarity of their images; empty where there is a ring
    units: Units
    threshold: Float[Tensor, ""]  # in nats of the detector
    probability: Float[Tensor, " N"]  # that an image is known, at each node
    recall: Float[Tensor, " 2"]  # the lowest and the highest share of known images that the threshold may keep

    @classmethod
    def start(cls, recall: float, *, pending: int, window: int = 0) -> MarginHistory:
        """The history before the first margin: what the prior says, with room for margins that wait."""
        empty, zero = torch.zeros(NODES, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        fit = fit_mixture(empty, empty, recall)
        ring, waiting = torch.zeros(window, dtype=torch.float64), torch.zeros(pending, 2, dtype=torch.float64)
        start = zero.long(), empty, empty, ClearImages.none(), ring, zero.long(), waiting, Units.nats()
        return cls(*start, *fit)

    def updated(self, sums: MarginSums, fit: MixtureFit) -> MarginHistory:
        """The history after the last of some updates."""
        clear = ClearImages(*(part[-1].clone() for part in sums.clear))
        last = {name: getattr(fit, name)[-1].clone() for name in fit._fields}
        return self._replace(counts=sums.counts[-1].clone(), recent=sums.recent[-1].clone(), clear=clear, **last)

    def with_pending(self, columns: Float[Tensor, "n 2"], seen: int) -> MarginHistory:
        """The history after `seen` samples, of which the last ones, in `columns`, wait for an update."""
        pending = torch.zeros_like(self.pending)
        pending[: len(columns)] = columns
        counts = torch.full_like(self.seen, seen), torch.full_like(self.waiting, len(columns))
        return self._replace(seen=counts[0], waiting=counts[1], pending=pending)


def flat_parts(history: MarginHistory) -> list[Tensor]:
    """The tensors that change at updates."""
    return [history.counts, history.recent, *history.clear, history.threshold, history.probability, history.recall]


def packed(history: MarginHistory) -> Float[Tensor, " M"]:
    """What changes at updates as one row of numbers: so that one copy is enough."""
    return torch.cat([part.reshape(-1) for part in flat_parts(history)])


def unpacked(history: MarginHistory, numbers: Float[Tensor, " M"]) -> MarginHistory:
    """A history with what changes at updates out of a row of numbers."""
    like = flat_parts(history)
    counts, recent, number, at_nodes, threshold, probability, recall = (
        part.view(one.shape) for part, one in zip(numbers.split([one.numel() for one in like]), like, strict=True)
    )
    clear = ClearImages(number, at_nodes)
    return history._replace(
        counts=counts, recent=recent, clear=clear, threshold=threshold, probability=probability, recall=recall
    )


class Steps(NamedTuple):
    """Consecutive samples of a stream, with at least one update among them; counts are those of the stream."""

    start: int  # samples before them
    ends: Sequence[int]  # samples at each update
    stop: int  # samples up to the last of them

    def parts(self, most: int) -> Iterator[Steps]:
        """Yield these samples with at most so many updates at a time."""
        start = self.start
        for first in range(0, len(self.ends), most):
            ends = self.ends[first : first + most]
            stop = ends[-1] if first + most < len(self.ends) else self.stop
            yield Steps(start, ends, stop)
            start = stop


class GainedSums(NamedTuple):
    """What the samples between an update and the one before add, for each of U updates."""

    counted: Float[Tensor, "U N"]  # margins at the nodes, each times its place in the stream
    late: Float[Tensor, "U N"]  # the same, each by how long before the update it came
    clear: ClearImages


class MarginSums(NamedTuple):
    """Margins counted at the nodes, at each of U updates."""

    counts: Float[Tensor, "U N"]
    recent: Float[Tensor, "U N"]
    clear: ClearImages

    def per_sample(self, ends: Float[Tensor, " U"]) -> Float[Tensor, "U N"]:
        """The counts over the number of samples at each update, as the mixtures take them."""
        return self.counts / ends[:, None]


def gained_sums(columns: Float[Tensor, "n 2"], place: Float[Tensor, " n"], end: Float[Tensor, " U"]) -> GainedSums:
    """What samples up to the last update add; `columns` are margin and clarity of the samples by `place`."""
    margin, clarity = columns.unbind(1)
    group = torch.bucketize(place, end)
    weight = torch.stack([place, torch.exp((place - end[group]) / RECENT)])
    counted, late = counts(margin, weight, group, len(end))
    return GainedSums(counted, late, ClearImages.of(margin, clarity, place, group, len(end)))


def sums_at_updates(
    history: MarginHistory, gained: GainedSums, end: Float[Tensor, " U"], first: Float[Tensor, ""] | int
) -> MarginSums:
    """The sums at each update, `first` samples having been counted before.

    All that came since an update is counted at the next, so that no sum depends on the division into calls. An update
    that is named again has the same sums.
    """
    age = (end - first) / RECENT
    kept = torch.exp(age - age[:, None]).tril()  # what is left, at each update, of what was gained before each other
    recent = kept @ gained.late + torch.exp(-age)[:, None] * history.recent
    return MarginSums(history.counts + gained.counted.cumsum(0), recent, history.clear.then(gained.clear))


class FittedUpdates(NamedTuple):
    """What holds from each of U updates on, after what held before the first; and the history after the last."""

    threshold: Float[Tensor, " U+1"]
    probability: Float[Tensor, "U+1 N"]  # that an image is known, at each node
    history: MarginHistory


def fitted_updates(
    history: MarginHistory, gained: GainedSums, end: Float[Tensor, " U"], first: Float[Tensor, ""] | int, recall: float
) -> FittedUpdates:
    """What follows from samples up to the last update, `first` of which the history has counted already."""
    sums = sums_at_updates(history, gained, end, first)
    fit = fit_mixture(sums.per_sample(end), sums.recent, recall, sums.clear)
    threshold = torch.cat([history.threshold[None], fit.threshold])
    probability = torch.cat([history.probability[None], fit.probability])
    return FittedUpdates(threshold, probability, history.updated(sums, fit))


class LearnedBlock(NamedTuple):
    """What consecutive samples meet, and the history after them."""

    decided: Float[Tensor, "2 T"]  # threshold, and the probability that each sample is known
    history: MarginHistory


def learned_block(history: MarginHistory, columns: Float[Tensor, "T 2"], steps: Steps, recall: float) -> LearnedBlock:
    """What follows from samples, in host memory; `columns` are their margin and clarity."""
    waiting, last = int(history.waiting), steps.ends[-1]
    first, whole = steps.start - waiting, torch.cat([history.pending[:waiting], columns])
    place = torch.arange(first + 1, steps.stop + 1, dtype=torch.float64)
    end, counted = torch.tensor(steps.ends, dtype=torch.float64), last - first
    found = fitted_updates(history, gained_sums(whole[:counted], place[:counted], end), end, first, recall)
    row = torch.bucketize(place[waiting:], end)  # the updates before each sample say which threshold it meets
    p_known = interpolate_rows(found.probability, columns[:, 0], row)
    decided = torch.stack([found.threshold[row], p_known])
    return LearnedBlock(decided, found.history.with_pending(whole[counted:], steps.stop))
