"""A threshold that follows the unlabelled stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.base import Decisions, RecallInterval, ThresholdRule, check_recall
from unseen.threshold.clear import ClearImages
from unseen.threshold.mixture import fit_mixture
from unseen.threshold.nodes import NODES, counts, interpolate, interpolate_few, interpolate_rows

RECENT = 512.0  # samples after which a margin counts 1 / e for the present share of known images
TOGETHER, GPU_TOGETHER = 32, 128  # updates that are fitted in one pass over the hypotheses
TYPICAL_MEAN, TYPICAL_DEVIATION = 3.0, 7.0  # of the margins of a mixed stream, in the units that the mixtures know


class Units(NamedTuple):
    """How margins are carried into the units that the mixtures know: (margin - shift) / scale."""

    shift: Float[Tensor, ""]
    scale: Float[Tensor, ""]

    @classmethod
    def nats(cls) -> Units:
        """Return the units of a detector that derives its baseline."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def of(cls, margins: Float[Tensor, " n"]) -> Units:
        """Return units in which these margins have the mean and the deviation of a typical stream."""
        scale = margins.std().clamp(min=1e-6) / TYPICAL_DEVIATION
        return cls(margins.mean() - TYPICAL_MEAN * scale, scale)

    def apply(self, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return margins in these units."""
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


FITTED = ("units", "threshold", "probability", "recall")  # parts of a history that change at updates alone


class Step(NamedTuple):
    """Margins of one call between two updates."""

    rows: slice
    seen: int  # samples of the stream up to the last of them
    is_due: bool  # whether an update follows


@dataclass(frozen=True)
class Adaptive(ThresholdRule[MarginHistory]):
    """Set the threshold from the stream so that it accepts a share `recall` of the known images.

    Where the detector derives its baseline, margins mean the same in every stream, and `mixture.fit_mixture` of all of
    them, and of the images that are clearly known, gives the threshold from the first sample on; a sample counts in
    proportion to its place in the stream, because margins improve while a detector learns. Elsewhere the units of a
    margin are unknown: the threshold is 0 until `warmup` margins have been seen, then the mixtures are fitted to the
    latest `window` margins, brought to the mean and deviation of a typical stream. That promises no recall: calibrate.

    Updates happen at sample counts from the start of the stream, at least every `every` samples, so the threshold does
    not depend on how the stream is split into calls. Decisions about the first `warmup` samples are marked as warming.

    >>> from unseen import Session, demo
    >>> Session(demo.load().space, Adaptive(recall=0.9)).is_warming
    True
    """

    recall: float = 0.95
    warmup: int = 128
    every: int = 128
    window: int = 4096
    derives_baseline: bool = False  # set by the session from the detector

    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        check_recall(self.recall)
        if not 1 <= self.every <= self.window or not 2 <= self.warmup <= self.window:
            raise SettingError(
                f"expected 1 <= every <= window and 2 <= warmup <= window, got every={self.every}, "
                f"warmup={self.warmup}, window={self.window}; the defaults are a good start"
            )

    def start(self) -> MarginHistory:
        """Return an empty history and what the prior says, or a threshold of 0."""
        empty, zero = torch.zeros(NODES, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        ring = torch.zeros(0 if self.derives_baseline else self.window, dtype=torch.float64)
        pending = torch.zeros(self.every if self.derives_baseline else 0, 2, dtype=torch.float64)
        fit = fit_mixture(empty, empty, self.recall)
        threshold = fit.threshold if self.derives_baseline else zero
        start = zero.long(), empty, empty, ClearImages.none(), ring, zero.long(), pending, Units.nats()
        return MarginHistory(*start, threshold, fit.probability, fit.recall)

    def for_detector(self, *, derives_baseline: bool) -> Adaptive:
        """Return this rule, with margins in known units where the detector derives its baseline."""
        return replace(self, derives_baseline=derives_baseline)

    def threshold_of(self, state: MarginHistory) -> float:
        return float(state.threshold)

    def recall_interval(self, state: MarginHistory) -> RecallInterval | None:
        """Return where the share of known images that is kept lies, if the units of margins are known."""
        return RecallInterval(*state.recall.tolist()) if self.derives_baseline else None

    def is_warming(self, state: MarginHistory) -> bool:
        return int(state.seen) < self.warmup

    def confidence(self, state: MarginHistory, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return the probability that each sample is known, from the fitted mixtures."""
        if not self.derives_baseline and self.is_warming(state):
            return torch.sigmoid(margin)
        return interpolate(state.probability, state.units.apply(margin)).to(margin)

    def learn(
        self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"] | None = None
    ) -> tuple[Decisions, MarginHistory]:
        """Return the decision about each sample, under the threshold set before it, and the state after the last.

        Thresholds are fitted where margins are; decisions and state are in host memory.
        """
        if not len(margin):
            return self.read(state, margin), state
        clarity = torch.full_like(margin, -torch.inf) if clarity is None else clarity
        if self._wait(state, len(margin)) and not margin.is_cuda:
            return self._learn_waiting(state, margin, clarity)
        steps = list(self._steps(int(state.seen), len(margin)))
        columns = torch.stack([column.detach().double() for column in (margin, clarity)], dim=1).cpu()
        remembered = self._counted if self.derives_baseline else self._in_ring
        histories = remembered(state, columns, steps)
        updates = iter(
            self._updates([one for one, step in zip(histories, steps, strict=True) if step.is_due], margin.device)
        )
        states = [state]
        for step, history in zip(steps, histories, strict=True):
            state = (
                next(updates) if step.is_due else history._replace(**{part: getattr(state, part) for part in FITTED})
            )
            states.append(state)
        return self._decisions(states, steps, margin.detach().cpu()), state

    def _wait(self, state: MarginHistory, count: int) -> bool:
        """Return whether the next `count` margins wait for an update."""
        seen = int(state.seen)
        interval = self._interval(seen)
        return self.derives_baseline and seen % interval + count < interval

    def _learn_waiting(
        self, state: MarginHistory, margin: Float[Tensor, " T"], clarity: Float[Tensor, " T"]
    ) -> tuple[Decisions, MarginHistory]:
        """Return what `learn` does for margins that wait, in a fifth of the time: by NumPy."""
        seen, waiting, values = int(state.seen), int(state.waiting), margin.detach().numpy()
        count, kind = len(values), values.dtype
        in_units = (values.astype(np.float64) - float(state.units.shift)) / float(state.units.scale)
        columns = (
            np.full(count, float(state.threshold), kind),
            interpolate_few(state.probability, in_units).astype(kind),
            np.full(count, seen < self.warmup),
        )
        pending = state.pending.numpy().copy()
        pending[waiting : waiting + count, 0] = values
        pending[waiting : waiting + count, 1] = clarity.detach().numpy()
        seen_after, waiting_after, pending_after = map(
            torch.from_numpy, (np.array(seen + count), np.array(waiting + count), pending)
        )
        history = state._replace(seen=seen_after, waiting=waiting_after, pending=pending_after)
        return Decisions(*map(torch.from_numpy, columns)), history

    def _steps(self, seen: int, count: int) -> Iterator[Step]:
        """Yield the next `count` margins as they lie between updates."""
        start = 0
        while start < count:
            interval = self._interval(seen)
            rows = slice(start, min(count, start + interval - seen % interval))
            start, seen = rows.stop, seen + rows.stop - rows.start
            yield Step(rows, seen, seen % interval == 0)

    def _decisions(
        self, states: Sequence[MarginHistory], steps: Sequence[Step], margin: Float[Tensor, " T"]
    ) -> Decisions:
        """Return the decisions about the margins of each step, under the state before it."""
        sizes = [step.rows.stop - step.rows.start for step in steps]
        before = states[: len(steps)]
        threshold = np.repeat([self.threshold_of(state) for state in before], sizes)
        warming = np.repeat([self.is_warming(state) for state in before], sizes)
        if self.derives_baseline:
            tables = torch.stack([state.probability for state in before])
            row = np.repeat(np.arange(len(sizes)), sizes)
            sure = interpolate_rows(tables, before[0].units.apply(margin), row).to(margin)
        else:
            parts = margin.split(sizes)
            sure = torch.cat([self.confidence(state, part) for state, part in zip(before, parts, strict=True)])
        return Decisions(torch.from_numpy(threshold).to(margin), sure, torch.from_numpy(warming))

    def _in_ring(
        self, state: MarginHistory, columns: Float[Tensor, "n 2"], steps: Sequence[Step]
    ) -> list[MarginHistory]:
        """Return the state after each step, with its margins among the latest."""
        histories = []
        for rows, seen, _ in steps:
            slots = torch.arange(seen - (rows.stop - rows.start), seen) % self.window
            ring = state.ring.index_copy(0, slots, columns[rows, 0])
            state = state._replace(seen=torch.full_like(state.seen, seen), ring=ring)
            histories.append(state)
        return histories

    def _counted(
        self, state: MarginHistory, columns: Float[Tensor, "n 2"], steps: Sequence[Step]
    ) -> list[MarginHistory]:
        """Return the state after each step: what came since the last update is counted at the next, all at once.

        So the sums do not depend on the division into calls.
        """
        waiting = int(state.waiting)
        columns = torch.cat([state.pending[:waiting], columns])
        first = int(state.seen) - waiting
        ends = [step.seen for step in steps if step.is_due]
        histories = self._counted_groups(state, columns[: ends[-1] - first], first, ends) if ends else []
        if not steps[-1].is_due:
            last = histories[-1] if histories else state
            columns = columns[ends[-1] - first :] if ends else columns
            pending = torch.zeros_like(state.pending)
            pending[: len(columns)] = columns
            seen = torch.full_like(state.seen, steps[-1].seen)
            histories.append(last._replace(seen=seen, waiting=torch.full_like(seen, len(columns)), pending=pending))
        return histories

    def _counted_groups(
        self, state: MarginHistory, columns: Float[Tensor, "n 2"], first: int, ends: Sequence[int]
    ) -> list[MarginHistory]:
        """Return the state at each update, with all before it in its sums; `first` samples came before `columns`."""
        sizes = np.diff([first, *ends])
        margin, clarity = map(torch.from_numpy, columns.numpy().T.copy())  # torch takes ten times as long to copy
        number = np.arange(first + 1.0, ends[-1] + 1)
        weight = torch.from_numpy(np.stack([number, np.exp((number - np.repeat(ends, sizes)) / RECENT)]))
        gained = counts(margin, weight, np.repeat(np.arange(len(ends)), sizes))
        counted = np.cumsum([state.counts.numpy(), *gained[0].numpy()], axis=0)[1:]
        recent, clear, start = state.recent.numpy(), state.clear, 0
        nothing, no_margins, histories = torch.zeros_like(state.waiting), torch.zeros_like(state.pending), []
        for row, size in enumerate(sizes.tolist()):
            rows, start = slice(start, start + size), start + size
            recent = recent * math.exp(-size / RECENT) + gained[1, row].numpy()
            clear = clear.after(margin[rows], clarity[rows], weight[0, rows])
            seen, at_nodes, late = map(torch.from_numpy, (np.array(ends[row]), counted[row], recent))
            histories.append(
                state._replace(
                    seen=seen, counts=at_nodes, recent=late, clear=clear, waiting=nothing, pending=no_margins
                )
            )
        return histories

    def _updates(self, histories: list[MarginHistory], device: torch.device) -> Iterator[MarginHistory]:
        """Yield each history with the threshold and the probabilities that follow from it."""
        if not self.derives_baseline:
            yield from map(self._updated, histories)
            return
        together = TOGETHER if device.type == "cpu" else GPU_TOGETHER
        for start in range(0, len(histories), together):
            some = histories[start : start + together]
            at_nodes = torch.stack([one.counts / one.seen for one in some]).to(device)
            clear = ClearImages.stacked([one.clear for one in some]).to(device)
            fit = fit_mixture(at_nodes, torch.stack([one.recent for one in some]), self.recall, clear)
            for one, threshold, probability, recall in zip(some, *fit, strict=True):
                yield one._replace(threshold=threshold, probability=probability, recall=recall)

    def _updated(self, state: MarginHistory) -> MarginHistory:
        if int(state.seen) < self.warmup:
            return state
        margins = state.ring[: int(state.seen)]
        units = Units.of(margins)
        at_nodes = counts(units.apply(margins))
        fit = fit_mixture(at_nodes, at_nodes, self.recall)
        threshold = fit.threshold * units.scale + units.shift
        return state._replace(units=units, threshold=threshold, probability=fit.probability)

    def _interval(self, seen: int) -> int:
        """Return how many samples lie between two updates: fewer at the start, where the units are known."""
        return min(self.every, 1 << max(0, seen.bit_length() - 4)) if self.derives_baseline else self.every
