"""Streams of one detector that are learned in lockstep on a GPU.

An update is launched in a fraction of the time that its kernels take, and streams that have seen equally many samples
share its launches. Samples that wait for an update are judged again with those that complete it: the state has not
changed since, so that they are judged as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.detectors.base import GPU_BLOCK, DetectorOutput
from unseen.detectors.pooled.evidence import LogitMoments
from unseen.detectors.pooled.formulas import Formulas
from unseen.detectors.pooled.gpu.formulas import FrozenSamples, KernelFormulas
from unseen.detectors.pooled.gpu.single_sample import AppendedRows, SingleSample
from unseen.detectors.pooled.gpu.tensors import InputRows, ResidentState
from unseen.detectors.pooled.gpu.updates import Updates
from unseen.detectors.pooled.repeats import digests, new_images
from unseen.detectors.pooled.state import (
    BASELINE_SAMPLES,
    INTERVAL,
    Fitted,
    PooledState,
    Sums,
    until_update,
    with_rows_at,
)
from unseen.detectors.state import map_state
from unseen.gpu import recording

LARGEST_ERROR = 1e-5  # of a direction before its last correction, relative; where one is larger, inverses are computed


class Unsolved(Exception):
    """The matrix of a direction has changed too much for its inverse to be followed."""


class Learned(NamedTuple):
    """What states take over, of all streams."""

    sums: Sums
    fitted: Fitted
    moments: LogitMoments
    baseline: Tensor
    tags: Tensor


class OrderedSamples(NamedTuple):
    """Samples of a pool in the order in which they arrive in each stream."""

    pool: FrozenSamples
    order: Int[Tensor, "S n"]
    baseline: Float[Tensor, "S n"]  # at each sample
    is_new: Bool[Tensor, "S n"]  # False: learned before, or waits for the next update

    def rows(self, rows: slice) -> InputRows:
        """Some samples of each stream."""
        samples = map_state(lambda part: part[self.order[:, rows]], self.pool)
        return InputRows(samples, self.baseline[:, rows], self.is_new[:, rows])


class Streams:
    """`count` streams of one detector on one GPU; one caller at a time."""

    def __init__(self, count: int, formulas: KernelFormulas) -> None:
        self.count, self.labels, self.formulas, self.lock = count, formulas.labels, formulas, Lock()
        self.capacity = max(INTERVAL, GPU_BLOCK // count // INTERVAL * INTERVAL)
        self.updates = Updates(self._stack_states([PooledState.start(self.labels)] * count, 0), self.capacity, formulas)
        self._loaded: tuple[Fitted, ...] = ()  # of the states that the resident tensors equal, if any
        self.single_sample: SingleSample | None = None
        self.appended = AppendedRows()

    def observe(
        self, states: Sequence[PooledState], z: Float[Tensor, "n d"], orders: Int[Tensor, "S T"]
    ) -> list[tuple[DetectorOutput, PooledState]]:
        """Learn an order of rows of `z` in each stream; return its readings and the state after the last sample.

        All states have seen equally many samples, of which equally many wait for an update.
        """
        size, latest = int(states[0].pending.size), [int(state.pending.latest_size) for state in states]
        waiting = [state.pending.all(size, late).z for state, late in zip(states, latest, strict=True)] if size else []
        before = torch.arange(size * len(waiting), device=z.device).view(len(states), size)
        index = torch.cat([before, orders.view(len(states), -1).to(z.device) + before.numel()], dim=1)
        output, after = self._learn(states, self.formulas.frozen_samples(torch.cat([*waiting, z])), index)
        return [(DetectorOutput(*(column[i] for column in output)), state) for i, state in enumerate(after)]

    def _learn(
        self, states: Sequence[PooledState], pool: FrozenSamples, index: Int[Tensor, "S n"]
    ) -> tuple[DetectorOutput, list[PooledState]]:
        """Learn `index` of the pool in each stream, first the samples that wait; return readings of the others."""
        waiting, n = int(states[0].pending.size), index.shape[1]
        at = int(states[0].seen) - waiting
        sizes = steps(at, n)
        baseline, moments, last_baseline = self._baselines(states, pool, index, at, waiting)
        tags = torch.stack([state.learned.tags for state in states])
        is_new, tags = new_images(tags, digests(pool.z), index[:, : sum(sizes)], sizes)
        is_new = torch.cat([is_new, is_new.new_zeros(self.count, n - sum(sizes))], dim=1)
        for exact in (False, True):
            self._load_states(states, at)
            output, rows = self._learn_steps(OrderedSamples(pool, index, baseline, is_new), at, sizes, exact=exact)
            sums, fitted = self.updates.resident.sums, self.updates.resident.fitted
            learned = Learned(sums, fitted, moments, last_baseline, tags)
            after = self._states_after(states, at + n, learned, rows)
            if self._is_accurate:  # the GPU has been told all before anybody waits for it
                return map_state(lambda part: part[:, waiting:], output), after
            self._loaded = ()
        raise Unsolved

    def _learn_steps(
        self, ordered: OrderedSamples, at: int, sizes: Sequence[int], *, exact: bool
    ) -> tuple[DetectorOutput, Float[Tensor, "S L W"] | None]:
        """The readings of samples, and what those will teach that come after the last update."""
        outputs, rows, done, n = [], None, sum(sizes), ordered.order.shape[1]
        for part, before in chunks(sizes, at, self.capacity):
            self._loaded = ()
            self.updates.fill(ordered.rows(slice(before - at, before - at + sum(part))))
            for size in part:
                self.updates.step(before, size, exact=exact)
                before += size
            outputs.append(self.updates.read(sum(part)))
        if done < n:
            self.updates.fill(ordered.rows(slice(done, n)))
            rows = self.updates.judge(n - done).rows.unflatten(0, (self.count, n - done))
            outputs.append(self.updates.read(n - done))
        return DetectorOutput(*(torch.cat(part, dim=1) for part in zip(*outputs, strict=True))), rows

    def _baselines(
        self, states: Sequence[PooledState], pool: FrozenSamples, index: Int[Tensor, "S n"], at: int, waiting: int
    ) -> tuple[Float[Tensor, "S n"], LogitMoments, Float[Tensor, " S"]]:
        """The baseline of each sample, and the moments and the baseline after the last."""
        moments = map_state(lambda *parts: torch.stack(parts), *(state.moments for state in states))
        known = torch.stack([state.baseline for state in states])
        if at >= BASELINE_SAMPLES:
            return known[:, None].expand(index.shape), moments, known
        number = at + torch.arange(1, index.shape[1] + 1, device=index.device)
        counted = (number <= BASELINE_SAMPLES).double()
        found = map_state(lambda one: one[index] * counted, pool.moments(len(self.labels.names)))
        # what waits is in the moments already
        totals = map_state(
            lambda total, one: total[:, None] - one[:, :waiting].sum(1, True) + one.cumsum(1), moments, found
        )
        baseline = self.formulas.baseline(map_state(lambda total: total / number.clamp(max=BASELINE_SAMPLES), totals))
        return baseline, map_state(lambda total: total[:, -1], totals), baseline[:, -1]

    def _load_states(self, states: Sequence[PooledState], at: int) -> None:
        """Go on from states after `at` samples; those that `_states_after` returned last are there already."""
        if len(self._loaded) == len(states) and all(
            held is state.fitted for held, state in zip(self._loaded, states, strict=True)
        ):
            return
        inverse = self.updates.resident.inverse  # not that of these states
        map_state(torch.Tensor.copy_, self.updates.resident, self._stack_states(states, at)._replace(inverse=inverse))
        self._loaded, self.updates.is_followed = (), False

    def _stack_states(self, states: Sequence[PooledState], at: int) -> ResidentState:
        """The parts of states after `at` samples that updates change."""
        zeros, dim = self.labels.id_anchors.new_zeros, self.labels.dim
        sums = map_state(lambda *parts: torch.stack(parts), *(state.sums for state in states))
        fitted = map_state(lambda *parts: torch.stack(parts), *(state.fitted for state in states))
        seen, error = zeros(self.count, dtype=torch.int64) + at, zeros(self.count, dtype=torch.float64)
        return ResidentState(seen, sums, fitted, zeros((self.count, dim, dim)), error)

    @property
    def _is_accurate(self) -> bool:
        return float(self.updates.resident.error.max()) <= LARGEST_ERROR

    def _states_after(
        self, states: Sequence[PooledState], seen: int, learned: Learned, rows: Float[Tensor, "S L W"] | None
    ) -> list[PooledState]:
        """States after all that was learned; `rows` wait for the next update."""
        whole, found = map_state(torch.clone, learned), []
        for number, state in enumerate(states):
            mine = map_state(lambda part, i=number: part[i], whole)
            pending = state.pending
            if rows is not None:
                waiting = pending.unpacked(rows[number])
                samples = map_state(lambda place, new: with_rows_at(place, new, 0), pending.samples, waiting)
                pending = pending._replace(samples=samples)
            counts = [torch.tensor(count) for count in (seen, 0 if rows is None else rows.shape[1], 0)]
            pending = pending._replace(size=counts[1], latest_size=counts[2])
            tags = state.learned._replace(tags=mine.tags)
            found.append(PooledState(counts[0], mine.moments, mine.baseline, mine.sums, mine.fitted, tags, pending))
        self._loaded = tuple(state.fitted for state in found)
        return found

    def single(self, state: PooledState, z: Float[Tensor, "1 d"]) -> tuple[DetectorOutput, Float[Tensor, "1 W"]]:
        """The reading of one sample that waits for an update, and what it will teach.

        `z` is as it came: `finish_single` says its length, so that the caller waits for the GPU once.
        """
        if not self._loaded or self._loaded[0] is not state.fitted:  # states between two updates share it
            self._load_states([state], int(state.seen) - int(state.pending.size))
            self._loaded = (state.fitted,)
        self.single_sample = self.single_sample or SingleSample(self.updates, z)
        return self.single_sample.judge(state, z)

    def finish_single(self, output: DetectorOutput) -> tuple[DetectorOutput, float]:
        """What `single` returned last with its copy in host memory, and the length of the sample."""
        return (output, 0.0) if self.single_sample is None else self.single_sample.finish(output)


class StreamsByCount:
    """The streams of a detector on a GPU: one by itself, and as many as were learned in lockstep the last time."""

    def __init__(self, formulas: Formulas) -> None:
        self.formulas, self._lock = KernelFormulas.of(formulas), Lock()
        self._by_count: dict[int, Streams] = {}

    @contextmanager
    def acquire(self, count: int) -> Iterator[Streams | None]:
        """Yield so many streams, or None while another thread uses them."""
        streams = self.get(count)
        if not streams.lock.acquire(blocking=False):
            yield None
            return
        try:
            with recording.current_device(streams.labels.id_anchors.device):
                yield streams
        finally:
            streams.lock.release()

    def get(self, count: int) -> Streams:
        """So many streams that are learned in lockstep."""
        with self._lock:
            if count not in self._by_count:
                self._by_count = {number: streams for number, streams in self._by_count.items() if number == 1}
                self._by_count[count] = Streams(count, self.formulas)
            return self._by_count[count]


def steps(at: int, count: int) -> list[int]:
    """How many of the next `count` samples come before each update that they complete."""
    sizes = []
    while (size := until_update(at)) <= count:
        sizes.append(size)
        at, count = at + size, count - size
    return sizes


def chunks(sizes: Sequence[int], at: int, capacity: int) -> list[tuple[list[int], int]]:
    """Consecutive steps in parts of at most `capacity` samples, each with the count of samples before it."""
    parts: list[tuple[list[int], int]] = []
    for size, before in zip(sizes, itertools.accumulate(sizes, initial=at), strict=False):
        if parts and sum(parts[-1][0]) + size <= capacity:
            parts[-1][0].append(size)
        else:
            parts.append(([size], before))
    return parts
