"""Margins of a call, learned on a GPU: a CUDA graph with one transfer there and one back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.gpu import recording, triton_import
from unseen.gpu.triton_import import power_of_two
from unseen.threshold.clear import ClearImages
from unseen.threshold.history import GainedSums, LearnedBlock, MarginHistory, Steps, fitted_updates, packed, unpacked
from unseen.threshold.nodes import NODES

UPDATES = 64  # of one graph: a call of 8,192 samples has no more, the first of a stream has 128
GRAPHS = 4  # that are kept: one for each wanted recall on each GPU
ROWS, COUNTED = 128, 32  # samples that one program decides, and that it counts at a time


@contextmanager
def acquire(device: torch.device | None, recall: float, room: int) -> Iterator[LearningGraph | None]:
    """Yield the graph of a GPU; None elsewhere, without Triton, and while another thread uses it."""
    if device is None or device.type != "cuda" or not triton_import.IS_INSTALLED:
        yield None
        return
    graph = graph_for(device, recall, room)
    if not graph.lock.acquire(blocking=False):
        yield None
        return
    try:
        with recording.current_device(device):
            yield graph
    finally:
        graph.lock.release()


@lru_cache(maxsize=GRAPHS)
def graph_for(device: torch.device, recall: float, room: int) -> LearningGraph:
    """The graph of rules that want a recall and have room for so many margins that wait."""
    return LearningGraph(device, recall, room)


class Given(NamedTuple):
    """What a graph reads."""

    packed: Float[Tensor, " M"]
    counts: Float[Tensor, " 3"]  # samples before those that wait, before the call, and after it
    ends: Float[Tensor, " U"]  # the last update is named again where there are fewer
    columns: Float[Tensor, "n 2"]  # margin and clarity: first those that wait


class Found(NamedTuple):
    """What a graph writes."""

    packed: Float[Tensor, " M"]
    pending: Float[Tensor, "E 2"]
    decided: Float[Tensor, "2 T"]


class LearningGraph:
    """Learn samples of one stream; one caller at a time. In host memory, for tests, kernels are not recorded."""

    def __init__(self, device: torch.device, recall: float, room: int) -> None:
        self.device, self.recall, self.room, self.lock = device, recall, room, Lock()
        self._like = MarginHistory.start(recall, pending=room)
        self._run: Callable[[], None] | None = None
        self.rows = (UPDATES + 1) * room
        size = len(packed(self._like))
        given, found = ((size,), (3,), (UPDATES,), (room + self.rows, 2)), ((size,), (room, 2), (2, self.rows))
        self._sent, self._received = (host_numbers(shapes, pinned=device.type == "cuda") for shapes in (given, found))
        self._inputs, self._outputs = (torch.zeros_like(one, device=device) for one in (self._sent, self._received))
        self._given, self._places = (Given(*views(one, given)) for one in (self._sent, self._inputs))
        self._found, self._results = (Found(*views(one, found)) for one in (self._received, self._outputs))

    def learn(self, history: MarginHistory, columns: Float[Tensor, "T 2"], steps: Steps) -> LearnedBlock:
        """What `learned_block` does."""
        waiting, count, last = int(history.waiting), len(columns), steps.ends[-1]
        given, numbers = self._given, torch.tensor([steps.start - waiting, steps.start, steps.stop])
        for place, values in zip(given, (packed(history), numbers, padded(steps.ends)), strict=False):
            place.copy_(values)
        given.columns[: self.room].copy_(history.pending)
        given.columns[self.room : self.room + count].copy_(columns)
        self._replay()
        learned = unpacked(self._like, self._found.packed.clone())
        pending = self._found.pending[: steps.stop - last]
        return LearnedBlock(self._found.decided[:, :count].clone(), learned.with_pending(pending, steps.stop))

    def _replay(self) -> None:
        is_on_gpu = self.device.type == "cuda"
        if self._run is None:
            self._run = recording.record(self._work, ()) if is_on_gpu else self._work
        self._run()
        if is_on_gpu:
            torch.cuda.current_stream().synchronize()

    def _work(self) -> None:
        from unseen.threshold import kernels  # here, because Triton takes a while to import

        self._inputs.copy_(self._sent, non_blocking=True)
        before, counts, end, columns = self._places
        history = unpacked(self._like, before)
        found = fitted_updates(history, self._gained(), end, counts[0], self.recall)
        kernels.decide[(-(-self.rows // ROWS),)](
            counts, end, columns, found.threshold, found.probability, self._results.decided, self._results.pending,
            self.rows, NODES, UPDATES, self.room, power_of_two(self.room), ROWS, num_warps=4,
        )  # fmt: skip
        self._results.packed.copy_(packed(found.history))
        self._received.copy_(self._outputs, non_blocking=True)

    def _gained(self) -> GainedSums:
        from unseen.threshold import kernels

        _, counts, end, columns = self._places
        counted, late, at_nodes = end.new_empty(3, UPDATES, NODES)
        clear = ClearImages(end.new_empty(UPDATES), at_nodes)
        kernels.count[(UPDATES,)](
            counts, end, columns, counted, late, *clear, NODES, power_of_two(NODES), self.room, COUNTED, num_warps=4
        )
        return GainedSums(counted, late, clear)


def padded(ends: Sequence[int]) -> Tensor:
    """Updates, the last of them named again until there are as many as a graph has."""
    return torch.tensor([*ends, *[ends[-1]] * (UPDATES - len(ends))])


def host_numbers(shapes: Sequence[tuple[int, ...]], *, pinned: bool) -> Float[Tensor, " n"]:
    """Room in host memory for tensors of some shapes."""
    return torch.zeros(sum(map(math.prod, shapes)), dtype=torch.float64, pin_memory=pinned)


def views(numbers: Float[Tensor, " n"], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Consecutive parts of numbers as tensors of some shapes."""
    parts = numbers.split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
