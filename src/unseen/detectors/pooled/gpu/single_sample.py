"""One sample that waits for an update: judged by one recorded graph, whose answer is one copy of a few bytes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import Reading
from unseen.detectors.gpu import recording
from unseen.detectors.pooled.gpu.tensors import InputRows
from unseen.detectors.pooled.gpu.updates import Updates
from unseen.detectors.pooled.state import Fitted, PooledState

ANSWER = 48  # bytes of the answer to one sample


class SingleSample:
    """Judge samples like `z` one by one, by the state that is resident."""

    def __init__(self, updates: Updates, z: Float[Tensor, "1 d"]) -> None:
        like = updates.labels.id_anchors
        self._z, self._answer = z.clone(), like.new_zeros(ANSWER, dtype=torch.uint8)
        self._taught, self._baseline = updates.taught_rows(1), like.new_zeros(1, dtype=torch.float64)
        self._fitted: Fitted | None = None  # of the state whose baseline `_baseline` is
        start, is_new = like.new_zeros(1, dtype=torch.int64), like.new_zeros(1, dtype=torch.int8)
        reading, length = answer_columns(self._answer, z.dtype)

        def work() -> None:
            torch.linalg.vector_norm(self._z, dim=-1, out=length)
            inputs = InputRows(updates.formulas.frozen_samples(self._z / length), self._baseline, is_new)
            updates.launch_judge(inputs, reading, self._taught, start, 1)

        self.run = recording.record(work, ())

    def judge(self, state: PooledState, z: Float[Tensor, "1 d"]) -> tuple[Reading, Float[Tensor, "1 W"], Tensor]:
        """Return the reading of a sample, what it will teach as `state.packed` has it, and its length."""
        if self._fitted is not state.fitted:
            self._baseline.copy_(state.baseline)
            self._fitted = state.fitted
        self._z.copy_(z)
        self.run()
        reading, length = answer_columns(self._answer.clone(), z.dtype)
        return reading, self._taught.rows, length


def answer_columns(answer: Tensor, dtype: torch.dtype) -> tuple[Reading, Tensor]:
    """Return the reading of one sample, and its length, that lie in some bytes: so that one copy is enough."""
    score, baseline, clarity, length = answer[: 4 * dtype.itemsize].view(dtype).split(1)
    label, route = answer[ANSWER - 16 : ANSWER - 8].view(torch.int64), answer[ANSWER - 8 : ANSWER - 7].view(torch.int8)
    return Reading(score, label, route, baseline, clarity), length
