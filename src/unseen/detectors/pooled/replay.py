"""On a GPU: judge and learn the samples between two updates by one recorded CUDA graph.

An update is some two hundred small kernels. Launching them one by one takes longer than running them, so the work on
a fixed number of samples is recorded once per detector and replayed on tensors that stay where they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import Reading
from unseen.detectors.pooled.sides import Regression, newton_solution
from unseen.detectors.pooled.state import (
    FIRST_DIRECTION,
    MANY,
    Fitted,
    PooledState,
    SampleBlock,
    SampleRows,
    Sums,
    packed,
)
from unseen.detectors.state import map_state
from unseen.labels import LabelSpace

LARGEST_ERROR = 1e-6  # of a direction, relative; where one is larger, the block is learned again, factor by factor
SINGLE = 0  # key of the graph of one sample that waits
WARMUPS = 2  # runs before a recording: libraries allocate what they need in the first

S = TypeVar("S")
Judge = Callable[[PooledState, SampleBlock], tuple[Reading, SampleRows]]


class Unsolved(Exception):
    """The matrix of the direction has changed too much for its inverse to be followed."""


class Resident(NamedTuple):
    """What an update changes, in tensors that stay where they are."""

    seen: Tensor
    sums: Sums
    fitted: Fitted
    inverse: Tensor  # of the matrix of the direction
    error: Tensor  # the largest of all updates
    baseline: Tensor

    @classmethod
    def of(cls, state: PooledState) -> Resident:
        """Return a copy of the parts of a state."""
        inverse = torch.linalg.inv(Regression.of(state.sums.sides).scatter).to(state.fitted.known.dtype)
        error = torch.zeros_like(state.baseline)
        return map_state(torch.clone, cls(state.seen, state.sums, state.fitted, inverse, error, state.baseline))


class Recording(NamedTuple):
    """One graph, what it reads and what it writes."""

    graph: torch.cuda.CUDAGraph
    given: Any
    result: Any


class Replay:
    """Graphs of one detector on one GPU, by the number of samples; one caller at a time."""

    def __init__(self, frozen: Callable[[Tensor], SampleBlock], judge: Judge, labels: LabelSpace) -> None:
        self._frozen, self._judge, self._labels = frozen, judge, labels
        self._held: Fitted | None = None  # of the state that the resident tensors equal, if any
        self._resident: Resident | None = None
        self.recordings: dict[int, Recording | None] = {}  # None where recording failed
        self.lock = Lock()

    @staticmethod
    def covers(seen: int, waiting: int) -> bool:
        """Return whether an update after so many samples, of which some are pending, can be replayed."""
        return not waiting and FIRST_DIRECTION <= seen < MANY

    def load(self, state: PooledState) -> None:
        """Go on from a state; the one that `unload` returned last is there already, with the inverse."""
        if self._resident is None:
            self._resident = Resident.of(state)
        elif self._held is not state.fitted:
            _overwrite(self._resident, Resident.of(state))
        else:
            self._resident.seen.copy_(state.seen)
            self._resident.baseline.copy_(state.baseline)
        self._held = state.fitted

    def unload(self, state: PooledState) -> PooledState:
        """Return `state` with what was learned since `load`; raise Unsolved where a direction is not accurate."""
        assert self._resident is not None
        if not float(self._resident.error) <= LARGEST_ERROR:
            raise Unsolved
        learned = map_state(torch.clone, self._resident)
        self._held = learned.fitted
        return state._replace(seen=learned.seen, sums=learned.sums, fitted=learned.fitted)

    def step(self, state: PooledState, block: SampleBlock) -> Reading:
        """Judge and learn the samples of a block, after which an update is due; `state` has the parts that stay."""
        size, self._held = len(block.z), None
        if size not in self.recordings:
            still = map_state(torch.clone, block)
            self.recordings[size] = self._recorded(still, lambda: self.advance(state, still))
        recording = self.recordings[size]
        if recording is None:
            return self.advance(state, block)
        _overwrite(recording.given, block)
        recording.graph.replay()
        return _copied(recording.result)

    def single(self, state: PooledState, z: Float[Tensor, "1 d"]) -> tuple[Reading, Float[Tensor, "1 W"]]:
        """Return the reading of one sample, and what it will teach, packed."""
        if self._held is not state.fitted:  # states between two updates share it
            self.load(state)
        if SINGLE not in self.recordings:
            still = z.clone()
            self.recordings[SINGLE] = self._recorded(still, lambda: self.look(state, still))
        recording = self.recordings[SINGLE]
        if recording is None:
            return self.look(state, z)
        _overwrite(recording.given, z)
        recording.graph.replay()
        reading, sample = recording.result
        return _copied(reading), sample.clone()

    def look(self, state: PooledState, z: Float[Tensor, "1 d"]) -> tuple[Reading, Float[Tensor, "1 W"]]:
        """Do what a graph of one sample records."""
        assert self._resident is not None
        held = self._resident
        block = self._frozen(z)._replace(base=held.baseline.expand(len(z)))
        reading, samples = self._judge(state._replace(sums=held.sums, fitted=held.fitted), block)
        return reading, packed(samples)

    def advance(self, state: PooledState, block: SampleBlock) -> Reading:
        """Do what a graph records."""
        assert self._resident is not None
        seen, sums, fitted, inverse, error, _ = self._resident

        def solve(matrix: Tensor, right: Tensor) -> Tensor:
            solution, followed_inverse, off = newton_solution(matrix, right, inverse)
            inverse.copy_(followed_inverse)
            error.copy_(torch.maximum(error, off))  # not a number stays one
            return solution

        reading, samples = self._judge(state._replace(sums=sums, fitted=fitted), block)
        sums.add_(samples, FIRST_DIRECTION, count=seen)
        seen += len(block.z)
        _overwrite(fitted, Fitted.of(sums, FIRST_DIRECTION, self._labels, count=seen, solve=solve))
        return reading

    def _recorded(self, given: Any, work: Callable[[], Any]) -> Recording | None:
        kept = map_state(torch.clone, self._resident)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                result = work()
        except RuntimeError as error:
            warnings.warn(f"expected a CUDA graph, got {error}; the detector runs unrecorded", stacklevel=2)
            return None
        finally:
            _overwrite(self._resident, kept)
        return Recording(graph, given, result)


def _overwrite(place: Any, value: Any) -> None:
    """Copy the tensors of a state into those of another, those of one type in one launch."""
    pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def sort(old: Tensor, new: Tensor) -> Tensor:
        into, out_of = pairs.setdefault(old.dtype, ([], []))
        into.append(old)
        out_of.append(new)
        return old

    map_state(sort, place, value)
    for into, out_of in pairs.values():
        torch._foreach_copy_(into, out_of)


def _copied(state: S) -> S:
    copy = map_state(torch.empty_like, state)
    _overwrite(copy, state)
    return copy
