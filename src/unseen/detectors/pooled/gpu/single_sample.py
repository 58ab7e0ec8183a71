"""One sample that waits for an update: judged by one recorded graph, whose answer is a few bytes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput
from unseen.detectors.pooled.gpu.tensors import InputRows
from unseen.detectors.pooled.gpu.updates import Updates
from unseen.detectors.pooled.state import Fitted, PooledState
from unseen.gpu import recording

ANSWER = 48  # bytes of the answer to one sample


class SingleReading(DetectorOutput):
    """The reading of one sample on a GPU, with what the GPU has sent of it already."""

    sent: DetectorOutput

    def cpu(self) -> DetectorOutput:
        return vars(self).get("sent") or super().cpu()  # a reading that was made of this one has nothing of it


class SingleSample:
    """Judge samples like `z` one by one, by the state that is resident."""

    def __init__(self, updates: Updates, z: Float[Tensor, "1 d"]) -> None:
        like = updates.labels.id_anchors
        self._z, self._answer = z.clone(), like.new_zeros(ANSWER, dtype=torch.uint8)
        self._copy = torch.zeros(ANSWER, dtype=torch.uint8, pin_memory=z.is_cuda)  # of the answer, in host memory
        self._taught, self._baseline = updates.taught_rows(1), like.new_zeros(1, dtype=torch.float64)
        self._fitted: Fitted | None = None  # of the state whose baseline `_baseline` is
        start, is_new = like.new_zeros(1, dtype=torch.int64), like.new_zeros(1, dtype=torch.int8)
        output, length = answer_columns(self._answer, z.dtype)

        def work() -> None:
            torch.linalg.vector_norm(self._z, dim=-1, out=length)
            inputs = InputRows(updates.formulas.frozen_samples(self._z / length), self._baseline, is_new)
            updates.launch_judge(inputs, output, self._taught, start, 1)
            self._copy.copy_(self._answer, non_blocking=True)

        self.run = recording.record(work, ())

    def judge(self, state: PooledState, z: Float[Tensor, "1 d"]) -> tuple[DetectorOutput, Float[Tensor, "1 W"]]:
        """The reading of a sample, and what it will teach, packed; nothing waits for the GPU."""
        if self._fitted is not state.fitted:
            self._baseline.copy_(state.baseline)
            self._fitted = state.fitted
        self._z.copy_(z)
        self.run()
        output, _ = answer_columns(self._answer.clone(), z.dtype)
        return output, self._taught.rows

    def finish(self, output: DetectorOutput) -> tuple[SingleReading, float]:
        """What `judge` returned last with its copy in host memory, and the length of the sample."""
        if self._answer.is_cuda:
            torch.cuda.current_stream(self._answer.device).synchronize()
        found = SingleReading(*output)
        found.sent, length = answer_columns(self._copy.clone(), self._z.dtype)
        return found, length.item()


class AppendedRows:
    """Rows that states share: each sees the ones it counts, and only the latest state has them appended in place."""

    def __init__(self) -> None:
        self._rows: Tensor | None = None
        self._used = 0

    def with_rows_at(self, rows: Tensor, more: Tensor, start: int) -> Tensor:
        """What `state.with_rows_at` does; rows behind those that any state counts may differ."""
        if rows is not self._rows or start != self._used:
            rows = rows.clone()
        rows[start : start + len(more)] = more
        self._rows, self._used = rows, start + len(more)
        return rows


def answer_columns(answer: Tensor, dtype: torch.dtype) -> tuple[DetectorOutput, Tensor]:
    """The reading of one sample, and its length, that lie in some bytes: so that one copy is enough."""
    score, baseline, clarity, length = answer[: 4 * dtype.itemsize].view(dtype).split(1)
    label, route = answer[ANSWER - 16 : ANSWER - 8].view(torch.int64), answer[ANSWER - 8 : ANSWER - 7].view(torch.int8)
    return DetectorOutput(score, label, route, baseline, clarity), length
