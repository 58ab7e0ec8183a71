"""TANL on a GPU: samples in order without the host, by recorded graphs of Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.state import map_state
from unseen.gpu import recording
from unseen.gpu.triton_import import power_of_two

TOGETHER = 32  # samples of one graph: an even number
ROWS = 2048  # samples that are given at once
BINS = 128  # room for the counts of shares
SCORE_WARPS = 8
PUSH_NUMBERS, PUSH_WARPS = 1024, 2  # that one program loads at once
RANK_ROWS, RANK_COLUMNS, RANK_WARPS = 16, 256, 4


class Sizes(NamedTuple):
    """Lengths of queues, window and lists."""

    negatives: int
    top: int
    queue: int
    window: int
    thresholds: int
    share_unit: int


class ResidentQueues(NamedTuple):
    """What samples change, in tensors that stay where they are; `tanl.Queues` and what follows from them."""

    activation: Float[Tensor, "2 Q L"]
    total: Float[Tensor, "2 L"]
    seen: Int[Tensor, " 2"]
    shares: Int[Tensor, " W"]
    numbers: Int[Tensor, "2 5"]  # as the kernel `score_sample` has them, of the sample before and of the next in turn
    parts: Float[Tensor, "2 G L"]  # sums of consecutive places of each queue
    counts: Int[Tensor, " BINS"]  # of shares between two thresholds
    count_totals: Int[Tensor, " BINS"]
    excess: Float[Tensor, " L"]
    active: Int[Tensor, " K"]


class InputBlock(NamedTuple):
    """Samples that are scored in order."""

    mass: Float[Tensor, " R"]
    logits: Float[Tensor, "R L"]
    activation: Float[Tensor, "R L"]
    number: Int[Tensor, " 1"]  # of samples
    gap: Float[Tensor, " 1"]


class ScoreColumns(NamedTuple):
    """What is returned about samples."""

    score: Float[Tensor, " R"]
    route: Int[Tensor, " R"]


class SampleGraph:
    """Graphs of one detector on one GPU; one caller at a time."""

    def __init__(self, sizes: Sizes, like: Tensor, gap: float) -> None:
        self.sizes, self.lock = sizes, Lock()
        self._run: Callable[[], None] | None = None
        wide, whole = (partial(torch.zeros, dtype=kind, device=like.device) for kind in (torch.float64, torch.int64))
        rows, groups = like.new_zeros(ROWS, sizes.negatives), -(-sizes.queue // self.group)
        self._inputs = InputBlock(wide(ROWS), rows, rows.clone(), whole(1), wide(1) + gap)
        self._scored = ScoreColumns(wide(ROWS), whole(ROWS).to(torch.int8))
        self._candidates = whole(sizes.negatives).int()
        self._queues = ResidentQueues(
            *(like.new_zeros(2, sizes.queue, sizes.negatives), like.new_zeros(2, sizes.negatives), whole(2)),
            *(
                whole(sizes.window).int(),
                whole(2, 5),
                like.new_zeros(2, groups, sizes.negatives),
                whole(BINS),
                whole(BINS),
            ),
            *(like.new_zeros(sizes.negatives), whole(sizes.top).int()),
        )

    @property
    def group(self) -> int:
        """Return how many places of a queue are summed up first."""
        return math.isqrt(self.sizes.queue)

    def load(self, activation: Tensor, total: Tensor, seen: Tensor, shares: Tensor, scored: Tensor) -> None:
        """Go on from queues."""
        device = total.device
        parts = torch.stack([part.sum(1) for part in activation.split(self.group, dim=1)], dim=1)
        live = shares[: int(scored)].long()
        bins = live * self.sizes.thresholds // self.sizes.share_unit
        counts = torch.zeros(BINS, dtype=torch.int64, device=device)
        numbers = torch.tensor([[0, int(scored), -1, 0, 0]] * 2, device=device)
        counts_held = seen.clamp(1, self.sizes.queue).to(total.dtype)
        excess = total[0] / counts_held[0] - total[1] / counts_held[1]
        fresh = ResidentQueues(
            *(activation, total, seen, shares, numbers, parts),
            *(counts.index_add(0, bins, torch.ones_like(bins)), counts.index_add(0, bins, live)),
            *(excess, excess.argsort(stable=True)[: self.sizes.top].int()),
        )
        map_state(torch.Tensor.copy_, self._queues, fresh)

    def observe(self, mass: Tensor, logits: Tensor, activation: Tensor) -> ScoreColumns:
        """Return scores and routes of samples, which teach in order."""
        parts = [
            self._observe_rows(*part) for part in zip(*(x.split(ROWS) for x in (mass, logits, activation)), strict=True)
        ]
        return ScoreColumns(*map(torch.cat, zip(*parts, strict=True)))

    def _observe_rows(self, mass: Tensor, logits: Tensor, activation: Tensor) -> ScoreColumns:
        count = len(mass)
        for place, value in zip(self._inputs, (mass, logits, activation), strict=False):
            place[:count].copy_(value)
        self._inputs.number.fill_(count)
        if self._run is None:
            self._run = recording.record(self._work, self._queues)
        self._queues.numbers[0, 0] = 0
        self._queues.numbers[0, 2] = -1
        for _ in range(count // TOGETHER + 1):  # one more than samples: the last is scored again where it taught
            self._run()
        return map_state(lambda column: column[:count].clone(), self._scored)

    def unload(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the queues after all samples."""
        queues = map_state(torch.clone, self._queues)
        return queues.activation, queues.total, queues.seen, queues.shares, queues.numbers[0, 1]

    def _work(self) -> None:
        from unseen.detectors.gpu import tanl_kernels as kernels  # here, because Triton takes a while to import

        queues, inputs, sizes = self._queues, self._inputs, self.sizes
        width, groups = power_of_two(sizes.top), queues.parts.shape[1]
        members, parts = power_of_two(self.group), power_of_two(groups)
        columns = max(1, PUSH_NUMBERS // max(members, parts))
        for sample in range(TOGETHER):
            before, numbers = queues.numbers[sample % 2], queues.numbers[1 - sample % 2]
            kernels.score_sample[(2,)](
                before, numbers, queues.seen, inputs.mass, inputs.logits, queues.active, queues.counts,
                queues.count_totals, queues.shares, *self._scored, inputs.gap, inputs.number, sizes.queue, sizes.window,
                sizes.negatives, sizes.top, width, sizes.thresholds, BINS, sizes.share_unit, num_warps=SCORE_WARPS,
            )  # fmt: skip
            kernels.push_sample[(-(-sizes.negatives // columns),)](
                numbers, queues.seen, inputs.activation, queues.activation, queues.parts, queues.total,
                queues.excess, sizes.queue, self.group, groups, sizes.negatives, columns, members, parts,
                num_warps=PUSH_WARPS,
            )  # fmt: skip
            kernels.find_candidates[(-(-sizes.negatives // 256),)](
                numbers, queues.excess, queues.active, self._candidates, sizes.negatives, sizes.top, width, 256,
                num_warps=4,
            )  # fmt: skip
            kernels.rank_candidates[(-(-sizes.negatives // RANK_ROWS),)](
                numbers, queues.excess, queues.active, self._candidates, sizes.top, RANK_ROWS, RANK_COLUMNS,
                num_warps=RANK_WARPS,
            )  # fmt: skip
