"""Margins of a whole call on a GPU: what each meets, and the history after all, by one recorded CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.gpu import recording, triton_import
from unseen.threshold.history import MarginHistory, Steps, fitted_block, packed, unpacked

UPDATES = 65  # of one graph: a call of 8,192 samples has 64 at most, and a step more; the first of a stream has 128
GRAPHS = 4  # that are kept: one for each wanted recall on each GPU


def learn_steps(
    history: MarginHistory, columns: Float[Tensor, "n 2"], steps: Steps, recall: float
) -> tuple[Float[Tensor, "2 n"], MarginHistory] | None:
    """Return what `LearningGraph.learn` does; None where another thread uses the graph, or Triton is missing."""
    if not triton_import.IS_INSTALLED:
        return None
    graph = graph_for(columns.device, recall, len(history.pending))
    if not graph.lock.acquire(blocking=False):
        return None
    try:
        return graph.learn(history, columns, steps)
    finally:
        graph.lock.release()


@lru_cache(maxsize=GRAPHS)
def graph_for(device: torch.device, recall: float, room: int) -> LearningGraph:
    """Return the graph of rules that want a recall and have room for so many margins that wait."""
    return LearningGraph(device, recall, room)


class LearningGraph:
    """Learn margins between updates; one caller at a time. In host memory, for tests, nothing is recorded."""

    def __init__(self, device: torch.device, recall: float, room: int) -> None:
        self.device, self.recall, self.room, self.lock = device, recall, room, Lock()
        self.rows = (UPDATES + 1) * room
        self._like = MarginHistory.start(recall, pending=room)
        self._run: Callable[[], None] | None = None
        shapes = len(packed(self._like)), 3 + UPDATES, (room + self.rows, 2), (2, self.rows), (room, 2)
        places = (torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes)
        # of the numbers the first are the samples before those that wait, before the call and after it; then the ends
        self._packed, self._numbers, self._columns, self._decisions, self._pending = places

    def learn(
        self, history: MarginHistory, columns: Float[Tensor, "n 2"], steps: Steps
    ) -> tuple[Float[Tensor, "2 n"], MarginHistory]:
        """Return the threshold and the confidence of each sample, and the history after all, in host memory."""
        seen, first, decided = int(history.seen), int(history.seen) - int(history.waiting), []
        self._packed.copy_(packed(history))
        self._columns[: self.room].copy_(history.pending)
        for part in steps.parts(UPDATES):
            some = columns[part.rows]
            self._columns[self.room : self.room + len(some)].copy_(some)
            self._numbers.copy_(torch.from_numpy(numbers(first, seen, part.seen, part.ends)))
            self.run()
            decided.append(self._decisions[:, : len(some)].clone())
            first = seen = part.seen
        whole = torch.cat([*(one.reshape(-1) for one in decided), self._packed, self._pending.reshape(-1)]).cpu()
        sizes = [one.numel() for one in (*decided, self._packed, self._pending)]
        *parts, after, pending = whole.split(sizes)
        waiting = pending.view(-1, 2)[: seen - part.ends[-1]]
        learned = unpacked(self._like, after.clone()).with_pending(waiting, seen)
        return torch.cat([one.view(2, -1) for one in parts], dim=1), learned

    def run(self) -> None:
        """Learn what lies in the places of the inputs."""
        if self._run is None:
            on_gpu = self.device.type == "cuda"
            self._run = recording.record(self._work, [self._packed]) if on_gpu else self._work
        self._run()

    def _work(self) -> None:
        first, seen, last = self._numbers[:3]
        end, count = self._numbers[3:], torch.arange(1, self.rows + 1, dtype=torch.float64, device=self.device)
        earlier, later = first + count[: self.room], end[-1] + count[: self.room]
        place = torch.cat([torch.where(earlier <= seen, earlier, last + 1), seen + count])
        history = unpacked(self._like, self._packed)
        block = fitted_block(history, self._columns, place, end, first, self.room, self.recall)
        torch.stack([block.threshold, block.confidence], out=self._decisions)
        row = (later - seen - 1).clamp(0, self.rows - 1).long()
        self._pending.copy_(torch.where((later <= last)[:, None], self._columns[self.room + row], 0.0))
        self._packed.copy_(packed(block.history))


def numbers(first: int, seen: int, last: int, ends: Sequence[int]) -> np.ndarray:
    """Return the numbers that a graph reads: the last update is named again where there are fewer than it has."""
    return np.array([first, seen, last, *ends, *[ends[-1]] * (UPDATES - len(ends))], dtype=np.float64)
