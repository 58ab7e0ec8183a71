"""On a GPU: streams of one detector learned in lockstep, each update by one recorded CUDA graph of Triton kernels.

An update is launched in a fraction of the time that its kernels take, and streams that have seen equally many samples
share its launches. Samples that wait for an update are judged again with those that complete it: the state has not
changed since, so that they are judged as before.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.detectors import triton_import
from unseen.detectors.base import GPU_BLOCK, Reading
from unseen.detectors.pooled.evidence import (
    Contrast,
    EvidenceTerm,
    LabelStatistics,
    LogitMoments,
    LogOdds,
    RowMoments,
    Surprise,
    unrelated_moments,
)
from unseen.detectors.pooled.names import TOP, NearestNames, TopNames
from unseen.detectors.pooled.repeats import digests, new_images
from unseen.detectors.pooled.state import (
    BASELINE_SAMPLES,
    FIRST_DIRECTION,
    INTERVAL,
    Fitted,
    PooledState,
    Sums,
    until_update,
)
from unseen.detectors.state import map_state
from unseen.labels import LabelSpace
from unseen.text import text_logits

LARGEST_ERROR = 1e-5  # of a direction before its last correction, relative; where one is larger, inverses are computed
WARMUPS = 2  # runs before a recording: kernels are compiled in the first
ROUNDS = 4  # of refinement of a direction
SAMPLES, COLUMNS, NAMES, TILE, ROWS = 128, 8, 512, 32, 8  # numbers that one program works on
GROUPS = 1024  # columns of logits that one program holds
JUDGE_WARPS = 8
ANSWER = 48  # bytes of the answer to one sample
TERM_KINDS = LogOdds, Contrast, Surprise


class Unsolved(Exception):
    """The matrix of a direction has changed too much for its inverse to be followed."""


class PoolSamples(NamedTuple):
    """Images with what the frozen text says of them."""

    z: Float[Tensor, "n d"]
    nearest: NearestNames
    statistics: Float[Tensor, "n 8"]  # of both sides: mean, variance, largest and logsumexp of the logits

    def moments(self, names: int) -> LogitMoments:
        """Return the moments from which baselines follow."""
        known_mean, known_variance, peak, _, mean, variance, _, _ = self.statistics.unbind(1)
        return unrelated_moments(RowMoments(known_mean, known_variance), RowMoments(mean, variance), peak, names)


class Given(NamedTuple):
    """Samples in rows, `capacity` for each stream."""

    samples: PoolSamples
    base: Float[Tensor, " R"]
    is_new: Int[Tensor, " R"]


class Scratch(NamedTuple):
    """What the samples of one update teach, S * B rows."""

    rows: Float[Tensor, "SB W"]  # as `state.packed` has them
    weights: Float[Tensor, "SB 2"]  # by side; 0 for an image that was learned before
    weighted: Float[Tensor, "SB 2 d"]
    z: Float[Tensor, "SB d"]


class Resident(NamedTuple):
    """What updates change, of S streams, in tensors that stay where they are."""

    seen: Int[Tensor, " S"]
    sums: Sums
    fitted: Fitted
    inverse: Float[Tensor, "S d d"]  # of the matrix of the direction
    error: Float[Tensor, " S"]  # the largest of all updates


class Alone(NamedTuple):
    """The judgement of one sample: what the graph reads and writes."""

    z: Float[Tensor, "1 d"]
    base: Float[Tensor, " 1"]
    answer: Tensor  # `answer_columns`
    row: Float[Tensor, "1 W"]  # as `state.packed` has it
    run: Callable[[], None]
    fitted: Fitted | None  # of the state whose baseline `base` is


@dataclass(frozen=True)
class Recording:
    """A graph, and the work that it records: that holds the tensors which the graph reads and writes."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        """Run the graph."""
        self.graph.replay()


@dataclass(frozen=True)
class Formulas:
    """What kernels need of a detector."""

    labels: LabelSpace
    statistics: LabelStatistics
    terms: Sequence[EvidenceTerm]
    tau: float
    popularity: float
    naming_popularity: float
    baseline: Callable[[LogitMoments], Tensor]

    @cached_property
    def are_known(self) -> bool:
        """Return whether kernels can be compiled here, and know the terms of the evidence and what examples change."""
        kinds = {type(term) for term in self.terms}
        return triton_import.IS_INSTALLED and self.labels.examples is None and kinds <= set(TERM_KINDS)

    @cached_property
    def settings(self) -> Float[Tensor, " 10"]:
        """Return the numbers that the kernel `judge` takes."""
        typical, own = self.statistics.typical_peak, (self.tau, self.popularity, self.naming_popularity)
        weights = (
            sum(getattr(term, "weight", 1.0) for term in self.terms if type(term) is kind) for kind in TERM_KINDS
        )
        offset = 1.0 if math.isfinite(typical) else math.inf
        numbers = *own, self.statistics.unit, self.statistics.gap_shrinkage, typical, offset, *weights
        return torch.tensor(numbers, dtype=torch.float64, device=self.labels.id_anchors.device)

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the number of known and of negative names."""
        return len(self.labels.names), len(self.labels.negatives)

    @property
    def tops(self) -> tuple[int, int]:
        """Return how many of the nearest names of each side count."""
        known, negatives = (min(TOP, size) for size in self.sizes)
        return known, negatives

    @property
    def packed_width(self) -> int:
        """Return the numbers of a sample as `state.packed` has it."""
        return self.labels.dim + 2 + 2 * sum(self.tops)

    def room(self, rows: int) -> PoolSamples:
        """Return room for samples."""
        wide = partial(_empty, self.labels.id_anchors)
        names = (TopNames(wide((rows, top), torch.int64), wide((rows, top))) for top in self.tops)
        return PoolSamples(wide((rows, self.labels.dim)), NearestNames(*names), wide((rows, 8)))

    def frozen(self, z: Float[Tensor, "n d"]) -> PoolSamples:
        """Return unit features with what the frozen text says of them."""
        parts = [self._frozen(part) for part in z.split(GPU_BLOCK)]
        return parts[0] if len(parts) == 1 else map_state(lambda *some: torch.cat(some), *parts)

    def _frozen(self, z: Float[Tensor, "n d"]) -> PoolSamples:
        from unseen.detectors.pooled import kernels  # here, because Triton takes a while to import

        text, samples = text_logits(self.labels, z, tau=self.tau), self.room(len(z))._replace(z=z)
        groups = [min(GROUPS, power_of_two(size)) for size in self.sizes]
        members = [power_of_two(-(-size // group)) for size, group in zip(self.sizes, groups, strict=True)]
        kernels.frozen[(len(z), 2)](
            *text, *samples.nearest.known, *samples.nearest.negative, samples.statistics,
            *self.sizes, *self.tops, *groups, *members, num_warps=4,
        )  # fmt: skip
        return samples


class Streams:
    """`count` streams of one detector on one GPU; one caller at a time."""

    def __init__(self, count: int, formulas: Formulas) -> None:
        self.count, self.labels, self.formulas, self.lock = count, formulas.labels, formulas, Lock()
        self.capacity = max(INTERVAL, GPU_BLOCK // count // INTERVAL * INTERVAL)
        self._start = _zeros(self.labels.id_anchors, count, torch.int64)
        self._resident = self._stacked([PooledState.start(self.labels)] * count, 0)
        self._held: tuple[Fitted, ...] = ()  # of the states that the resident tensors equal, if any
        self._is_followed = False  # whether the resident inverse is that of the last matrix
        self.recordings: dict[str, Callable[[], None]] = {}  # by what they do
        self._alone: Alone | None = None

    # -- whole parts of streams

    def observe(
        self, states: Sequence[PooledState], pool: PoolSamples, index: Int[Tensor, "S n"]
    ) -> tuple[Reading, list[PooledState]]:
        """Learn `index` of the pool in each stream, first the samples that wait; return readings in rows of streams.

        All states have seen equally many samples, of which equally many wait. Readings of those are left out.
        """
        waiting, n = int(states[0].pending.size), index.shape[1]
        at = int(states[0].seen) - waiting
        sizes = steps(at, n)
        base, moments, last_base = self._bases(states, pool, index, at, waiting)
        tags = torch.stack([state.learned.tags for state in states])
        is_new, tags = new_images(tags, digests(pool.z), index[:, : sum(sizes)], sizes)
        for exact in (False, True):
            reading, rows = self._learn_steps(states, pool, index, base, is_new, at, sizes, exact=exact)
            if self._is_accurate:
                learned = Learned(self._resident.sums, self._resident.fitted, moments, last_base, tags)
                return map_state(lambda part: part[:, waiting:], reading), self._after(states, at + n, learned, rows)
            self._held = ()
        raise Unsolved

    def _learn_steps(
        self,
        states: Sequence[PooledState],
        pool: PoolSamples,
        index: Int[Tensor, "S n"],
        base: Float[Tensor, "S n"],
        is_new: Bool[Tensor, "S m"],
        at: int,
        sizes: Sequence[int],
        *,
        exact: bool,
    ) -> tuple[Reading, Float[Tensor, "S L W"] | None]:
        """Return the readings of samples, and what those will teach that come after the last update."""
        self._load(states, at)
        answers, rows, done, n = [], None, sum(sizes), index.shape[1]
        for part, before in chunks(sizes, at, self.capacity):
            self._give(pool, index, base, is_new, slice(before - at, before - at + sum(part)))
            for size in part:
                self._step(before, size, exact=exact)
                before += size
            answers.append(self._answered(sum(part)))
        if done < n:
            self._give(pool, index, base, torch.zeros_like(index), slice(done, n))
            rows = self._judge(n - done).rows.unflatten(0, (self.count, n - done))
            answers.append(self._answered(n - done))
        return Reading(*(torch.cat(part, dim=1) for part in zip(*answers, strict=True))), rows

    def _bases(
        self, states: Sequence[PooledState], pool: PoolSamples, index: Int[Tensor, "S n"], at: int, waiting: int
    ) -> tuple[Float[Tensor, "S n"], LogitMoments, Float[Tensor, " S"]]:
        """Return the baseline of each sample, and the moments and the baseline after the last."""
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
        base = self.formulas.baseline(map_state(lambda total: total / number.clamp(max=BASELINE_SAMPLES), totals))
        return base, map_state(lambda total: total[:, -1], totals), base[:, -1]

    def _give(self, pool: PoolSamples, index: Tensor, base: Tensor, is_new: Tensor, rows: slice) -> None:
        """Put samples into the rows that graphs read."""
        chosen, count = index[:, rows], rows.stop - rows.start
        samples = map_state(lambda part: part[chosen], pool)
        given = Given(samples, base[:, rows], is_new[:, rows])
        map_state(lambda place, value: place.unflatten(0, (self.count, -1))[:, :count].copy_(value), self._given, given)
        self._start.zero_()

    def _answered(self, count: int) -> Reading:
        """Return the readings of the samples that were given."""
        return map_state(lambda column: column.unflatten(0, (self.count, -1))[:, :count].clone(), self._answers)

    # -- tensors that stay where they are

    @cached_property
    def _given(self) -> Given:
        like, rows = self.labels.id_anchors, self.count * self.capacity
        return Given(self.formulas.room(rows), _zeros(like, rows, torch.float64), _zeros(like, rows, torch.int8))

    @cached_property
    def _answers(self) -> Reading:
        like, rows = self.labels.id_anchors, self.count * self.capacity
        return Reading(*(_zeros(like, rows, kind) for kind in reading_kinds(like.dtype)))

    @cached_property
    def _gains(self) -> Float[Tensor, "S 16"]:
        return _zeros(self.labels.id_anchors, (self.count, 16), torch.float64)

    @cached_property
    def _pull(self) -> Float[Tensor, "S d"]:
        return _zeros(self.labels.id_anchors, (self.count, self.labels.dim), torch.float64)

    @cached_property
    def _scatter(self) -> tuple[Tensor, Tensor]:
        like, dim = self.labels.id_anchors, self.labels.dim
        return _zeros(like, (self.count, dim, dim), torch.float64), _zeros(like, (self.count, dim, dim))

    def _load(self, states: Sequence[PooledState], at: int) -> None:
        """Go on from states after `at` samples; those that `_unload` returned last are there already."""
        if len(self._held) == len(states) and all(
            held is state.fitted for held, state in zip(self._held, states, strict=True)
        ):
            return
        inverse = self._resident.inverse  # not that of these states
        map_state(torch.Tensor.copy_, self._resident, self._stacked(states, at)._replace(inverse=inverse))
        self._held, self._is_followed = (), False

    def _stacked(self, states: Sequence[PooledState], at: int) -> Resident:
        """Return the parts of states after `at` samples that updates change."""
        like, dim = self.labels.id_anchors, self.labels.dim
        sums = map_state(lambda *parts: torch.stack(parts), *(state.sums for state in states))
        fitted = map_state(lambda *parts: torch.stack(parts), *(state.fitted for state in states))
        seen, error = _zeros(like, self.count, torch.int64) + at, _zeros(like, self.count, torch.float64)
        return Resident(seen, sums, fitted, _zeros(like, (self.count, dim, dim)), error)

    @property
    def _is_accurate(self) -> bool:
        return float(self._resident.error.max()) <= LARGEST_ERROR

    def _after(
        self, states: Sequence[PooledState], seen: int, learned: Learned, rows: Float[Tensor, "S L W"] | None
    ) -> list[PooledState]:
        """Return states after all that was learned; `rows` wait for the next update."""
        whole, found = map_state(torch.clone, learned), []
        for number, state in enumerate(states):
            mine = map_state(lambda part, i=number: part[i], whole)
            pending = state.pending
            if rows is not None:
                samples = map_state(_with_rows, pending.samples, pending.unpacked(rows[number]))
                pending = pending._replace(samples=samples)
            counts = [torch.tensor(count) for count in (seen, 0 if rows is None else rows.shape[1], 0)]
            pending = pending._replace(size=counts[1], latest_size=counts[2])
            tags = state.learned._replace(tags=mine.tags)
            found.append(PooledState(counts[0], mine.moments, mine.base, mine.sums, mine.fitted, tags, pending))
        self._held = tuple(state.fitted for state in found)
        return found

    # -- updates

    def _step(self, at: int, size: int, *, exact: bool) -> None:
        """Judge and learn the next samples of each stream, after which an update is due; fit the direction anew.

        Where the inverse of its matrix cannot be followed from an earlier one, it is computed.
        """
        fits, self._held = at + size >= FIRST_DIRECTION, ()
        self._run(f"learn {size}, {fits}", lambda: self._learn(size, fits=fits))
        if fits:
            newton = 0 if exact or not self._is_followed else newton_steps(at)
            if not newton:
                self._resident.inverse.copy_(torch.linalg.inv(self._scatter[0]))
            self._run(f"solve {newton}", lambda: self._solve(newton))
            self._is_followed = True

    def _run(self, name: str, work: Callable[[], None]) -> None:
        """Run a recorded graph; record it the first time."""
        if name not in self.recordings:
            self.recordings[name] = self._recorded(work, (self._resident, self._start, self._gains))
        self.recordings[name]()

    def _judge(self, size: int) -> Scratch:
        """Judge the next samples of each stream; return what they will teach."""
        scratch = self._scratch(size)
        self._launch_judge(self._given, self._answers, scratch, self._start, self.capacity)
        return scratch

    def _scratch(self, size: int) -> Scratch:
        like, dim, rows = self.labels.id_anchors, self.labels.dim, self.count * size
        packed, weights = (_empty(like, (rows, columns), torch.float64) for columns in (self.formulas.packed_width, 2))
        return Scratch(packed, weights, _empty(like, (rows, 2, dim)), _empty(like, (rows, dim)))

    def _launch_judge(self, given: Given, answers: Reading, scratch: Scratch, start: Tensor, capacity: int) -> None:
        from unseen.detectors.pooled import kernels  # here, because Triton takes a while to import

        sums, fitted, samples = self._resident.sums, self._resident.fitted, given.samples
        dim, size, tops = self.labels.dim, len(scratch.z) // self.count, self.formulas.tops
        kernels.judge[(size, self.count)](
            start, samples.z, *samples.nearest.known, *samples.nearest.negative, samples.statistics, given.base,
            given.is_new, self.formulas.settings, self.labels.id_anchors, self.labels.ood_anchors,
            sums.known.total, sums.known.images, sums.negative.total, sums.negative.images,
            fitted.known, fitted.negative, fitted.direction.slope, fitted.direction.centre, fitted.direction.level,
            *fitted.likelihood, fitted.popularity, fitted.votes, *answers, *scratch, self._gains,
            capacity, size, *self.formulas.sizes, dim, *tops,
            power_of_two(dim), *map(power_of_two, tops), num_warps=JUDGE_WARPS,
        )  # fmt: skip

    def _learn(self, size: int, *, fits: bool) -> None:
        """Judge and learn the next samples of each stream; where it `fits`, make the system of the direction."""
        from unseen.detectors.pooled import kernels  # here, because Triton takes a while to import

        seen, sums, fitted, *_ = self._resident
        sides, direction = sums.sides, fitted.direction
        (known, negatives), dim, tops = self.formulas.sizes, self.labels.dim, self.formulas.tops
        scratch = self._judge(size)
        products = torch.bmm(scratch.weighted.view(self.count, size, 2 * dim).mT, scratch.z.view(self.count, size, dim))
        kernels.learn_names[(size * sum(tops) + 1, self.count)](
            self._start, seen, scratch.rows, scratch.weights, scratch.z, self._gains,
            sums.known.total, sums.known.images, sums.negative.total, sums.negative.images, sums.votes,
            sides.weight, sides.margin, *sums.predictions, direction.level, direction.images, *fitted.likelihood,
            size, known, negatives, dim, *tops, power_of_two(dim), fits, num_warps=1,
        )  # fmt: skip
        column_programs = -(-dim // COLUMNS)
        kernels.learn_columns[(column_programs - (-known // NAMES), self.count)](
            scratch.rows, scratch.weights, sides.weight, sides.margin, sides.image, sides.cross,
            self.labels.text_mean, fitted.known, fitted.negative, direction.centre, self._pull,
            sums.votes, fitted.popularity, fitted.votes, size, known, dim, scratch.rows.shape[1], column_programs,
            SAMPLES, COLUMNS, NAMES, fits, num_warps=4,
        )  # fmt: skip
        (scatter, rough), tiles = self._scatter, -(-dim // TILE)
        kernels.learn_gram[(tiles * tiles, self.count)](
            products, sides.gram, sides.weight, direction.centre, scatter, rough, dim, tiles, TILE, fits, num_warps=4
        )

    def _solve(self, newton: int) -> None:
        """Follow the inverse by steps of Newton's method, products only, and refine the direction that it gives."""
        from unseen.detectors.pooled import kernels  # here, because Triton takes a while to import

        inverse, error, slope = self._resident.inverse, self._resident.error, self._resident.fitted.direction.slope
        (scatter, rough), pull, dim = self._scatter, self._pull, self.labels.dim
        if newton:
            followed = inverse
            for _ in range(newton):
                followed = torch.baddbmm(followed, followed, torch.bmm(rough, followed), beta=2, alpha=-1)
            inverse.copy_(followed)
        grid, width, left = (-(-dim // ROWS), self.count), power_of_two(dim), torch.empty_like(pull)
        for number in range(ROUNDS + 1):
            kernels.correct[grid](
                inverse, left, pull, slope, error, dim, ROWS, width, number == 0, number == ROUNDS, num_warps=4
            )
            if number < ROUNDS:
                kernels.residual[grid](scatter, pull, slope, left, dim, ROWS, width, num_warps=4)

    # -- one sample that waits

    def single(self, state: PooledState, z: Float[Tensor, "1 d"]) -> tuple[Reading, Float[Tensor, "1 W"], Tensor]:
        """Return the reading of one sample that waits for an update, what it will teach, and its length.

        `z` is as it came: the length is for the caller to check, so that it waits for the GPU once.
        """
        if not self._held or self._held[0] is not state.fitted:  # states between two updates share it
            self._load([state], int(state.seen) - int(state.pending.size))
            self._held = (state.fitted,)
        alone = self._alone = self._alone or self._recorded_alone(z)
        if alone.fitted is not state.fitted:
            alone.base.copy_(state.baseline)
            self._alone = alone._replace(fitted=state.fitted)
        alone.z.copy_(z)
        alone.run()
        reading, length = answer_columns(alone.answer.clone(), z.dtype)
        return reading, alone.row, length

    def _recorded_alone(self, z: Tensor) -> Alone:
        """Record the judgement of one sample."""
        like = self.labels.id_anchors
        answer, scratch, base = _zeros(like, ANSWER, torch.uint8), self._scratch(1), _zeros(like, 1, torch.float64)
        reading, length = answer_columns(answer, z.dtype)
        still, start, is_new = z.clone(), _zeros(like, 1, torch.int64), _zeros(like, 1, torch.int8)

        def work() -> None:
            torch.linalg.vector_norm(still, dim=-1, out=length)
            given = Given(self.formulas.frozen(still / length), base, is_new)
            self._launch_judge(given, reading, scratch, start, 1)

        return Alone(still, base, answer, scratch.rows, self._recorded(work, ()), None)

    def _recorded(self, work: Callable[[], None], changed: Any) -> Callable[[], None]:
        """Return a recorded graph of `work`, or `work` where recording fails; `changed` is as it was afterwards."""
        triton_import.log_compilation()
        kept = [map_state(torch.clone, part) for part in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                work()
                for part, before in zip(changed, kept, strict=True):  # a second run would read the samples that follow
                    map_state(torch.Tensor.copy_, part, before)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                work()
        except RuntimeError as error:
            warnings.warn(f"expected a CUDA graph, got {error}; the detector runs unrecorded", stacklevel=2)
            return work
        return Recording(graph, work)


class StreamsByCount:
    """What learns one stream of a detector, and what learned several the last time."""

    def __init__(self, formulas: Formulas) -> None:
        self._formulas, self._lock = formulas, Lock()
        self._kept: dict[int, Streams] = {}

    def get(self, count: int) -> Streams:
        """Return what learns so many streams in lockstep."""
        with self._lock:
            if count not in self._kept:
                self._kept = {number: streams for number, streams in self._kept.items() if number == 1}
                self._kept[count] = Streams(count, self._formulas)
            return self._kept[count]


class Learned(NamedTuple):
    """What states take over, of all streams."""

    sums: Sums
    fitted: Fitted
    moments: LogitMoments
    base: Tensor
    tags: Tensor


def steps(at: int, count: int) -> list[int]:
    """Return how many of the next `count` samples come before each update that they complete."""
    sizes = []
    while (size := until_update(at)) <= count:
        sizes.append(size)
        at, count = at + size, count - size
    return sizes


def newton_steps(at: int) -> int:
    """Return how many steps follow a matrix after `at` samples: the more a few samples change it, the more."""
    return 4 if at < 4 * INTERVAL else 3 if at < 16 * INTERVAL else 2 if at < 64 * INTERVAL else 1


def chunks(sizes: Sequence[int], at: int, capacity: int) -> list[tuple[list[int], int]]:
    """Return consecutive steps in parts of at most `capacity` samples, each with the count of samples before it."""
    parts: list[tuple[list[int], int]] = []
    for size, before in zip(sizes, itertools.accumulate(sizes, initial=at), strict=False):
        if parts and sum(parts[-1][0]) + size <= capacity:
            parts[-1][0].append(size)
        else:
            parts.append(([size], before))
    return parts


def reading_kinds(kind: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the types of the columns of a reading."""
    return kind, torch.int64, torch.int8, kind, kind


def answer_columns(answer: Tensor, kind: torch.dtype) -> tuple[Reading, Tensor]:
    """Return the reading of one sample, and its length, that lie in some bytes: so that one copy is enough."""
    score, base, clarity, length = answer[: 4 * kind.itemsize].view(kind).split(1)
    label, route = answer[ANSWER - 16 : ANSWER - 8].view(torch.int64), answer[ANSWER - 8 : ANSWER - 7].view(torch.int8)
    return Reading(score, label, route, base, clarity), length


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def _with_rows(place: Tensor, rows: Tensor) -> Tensor:
    return torch.cat([rows, place[len(rows) :]])


def _empty(like: Tensor, shape: int | tuple[int, ...], kind: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=kind or like.dtype, device=like.device)


def _zeros(like: Tensor, shape: int | tuple[int, ...], kind: torch.dtype | None = None) -> Tensor:
    return torch.zeros(shape, dtype=kind or like.dtype, device=like.device)
