"""On a GPU: judge and learn the samples between two updates by one recorded CUDA graph.

An update is some two hundred small kernels. Launching them one by one takes longer than running them, so the work on
a fixed number of samples is recorded once per detector and replayed on tensors that stay where they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from unseen.detectors.base import Reading
from unseen.detectors.pooled.sides import Regression, followed
from unseen.detectors.pooled.state import FIRST_DIRECTION, MANY, Fitted, PooledState, SampleBlock, SampleRows, Sums
from unseen.detectors.state import map_state
from unseen.labels import LabelSpace

LARGEST_ERROR = 1e-6  # of a direction, relative; where one is larger, the block is learned again, factor by factor
WARMUPS = 2  # runs before a recording: libraries allocate what they need in the first

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

    @classmethod
    def of(cls, state: PooledState) -> Resident:
        """Return a copy of the parts of a state."""
        inverse = torch.linalg.inv(Regression.of(state.sums.sides).scatter).to(state.fitted.known.dtype)
        error = torch.zeros_like(state.baseline)
        return map_state(torch.clone, cls(state.seen, state.sums, state.fitted, inverse, error))


class Recording(NamedTuple):
    """One graph, what it reads and what it writes."""

    graph: torch.cuda.CUDAGraph
    block: SampleBlock
    reading: Reading


class Replay:
    """Graphs of one detector on one GPU, by the number of samples; one caller at a time."""

    def __init__(self, judge: Judge, labels: LabelSpace) -> None:
        self._judge, self._labels = judge, labels
        self._resident: Resident | None = None
        self.recordings: dict[int, Recording | None] = {}  # None where recording failed
        self.lock = Lock()

    @staticmethod
    def covers(seen: int, waiting: int) -> bool:
        """Return whether an update after so many samples, of which some are pending, can be replayed."""
        return not waiting and FIRST_DIRECTION <= seen < MANY

    def load(self, state: PooledState) -> None:
        """Go on from a state."""
        if self._resident is None:
            self._resident = Resident.of(state)
        else:
            _overwrite(self._resident, Resident.of(state))

    def unload(self, state: PooledState) -> PooledState:
        """Return `state` with what was learned since `load`; raise Unsolved where a direction is not accurate."""
        assert self._resident is not None
        if not float(self._resident.error) <= LARGEST_ERROR:
            raise Unsolved
        learned = map_state(torch.clone, self._resident)
        return state._replace(seen=learned.seen, sums=learned.sums, fitted=learned.fitted)

    def step(self, state: PooledState, block: SampleBlock) -> Reading:
        """Judge and learn the samples of a block, after which an update is due; `state` has the parts that stay."""
        size = len(block.z)
        if size not in self.recordings:
            self.recordings[size] = self._recorded(state, map_state(torch.clone, block))
        recording = self.recordings[size]
        if recording is None:
            return self.advance(state, block)
        _overwrite(recording.block, block)
        recording.graph.replay()
        return map_state(torch.clone, recording.reading)

    def advance(self, state: PooledState, block: SampleBlock) -> Reading:
        """Do what a graph records."""
        assert self._resident is not None
        seen, sums, fitted, inverse, error = self._resident

        def solve(matrix: Tensor, right: Tensor) -> Tensor:
            solution, followed_inverse, off = followed(matrix, right, inverse)
            inverse.copy_(followed_inverse)
            error.copy_(torch.maximum(error, off))  # not a number stays one
            return solution

        reading, samples = self._judge(state._replace(sums=sums, fitted=fitted), block)
        sums.add_(samples, FIRST_DIRECTION, count=seen)
        seen += len(block.z)
        _overwrite(fitted, Fitted.of(sums, FIRST_DIRECTION, self._labels, count=seen, solve=solve))
        return reading

    def _recorded(self, state: PooledState, block: SampleBlock) -> Recording | None:
        kept = map_state(torch.clone, self._resident)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                self.advance(state, block)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                reading = self.advance(state, block)
        except RuntimeError as error:
            warnings.warn(
                f"expected a CUDA graph of {len(block.z)} samples, got {error}; it runs unrecorded", stacklevel=2
            )
            return None
        finally:
            _overwrite(self._resident, kept)
        return Recording(graph, block, reading)


def _overwrite(place: object, value: object) -> None:
    """Copy the tensors of a state into those of another."""
    map_state(lambda old, new: old.copy_(new), place, value)
