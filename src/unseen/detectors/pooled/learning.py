"""A state while a block is learned: judged in arrival order, updated at fixed counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput
from unseen.detectors.pooled.state import (
    LATEST,
    Fitted,
    Pending,
    PooledState,
    SampleBlock,
    SampleRows,
    new_samples,
    until_update,
    with_rows_at,
)
from unseen.detectors.state import map_state
from unseen.labels import LabelSpace

Judge = Callable[[PooledState, SampleBlock], tuple[DetectorOutput, SampleRows]]
AppendRows = Callable[[Tensor, Tensor, int], Tensor]  # as `with_rows_at`
JudgeFew = Callable[[PooledState, Tensor], tuple[DetectorOutput, Tensor]]  # the samples as `packed` returns them


class Learning:
    """A state in progress: sums that this call has copied are written to, and counts are plain numbers."""

    def __init__(self, state: PooledState, labels: LabelSpace) -> None:
        self.state, self.labels = state, labels
        numbers = state.seen, state.pending.size, state.pending.latest_size
        self.seen, self.waiting, self.latest = map(int, numbers)
        self._owns_sums = False

    @property
    def until_update(self) -> int:
        """How many samples may come before the next update."""
        return until_update(self.seen)

    def judge(self, block: SampleBlock, judge: Judge) -> DetectorOutput:
        """The readings of samples, at most as many as `until_update` allows, and learn them."""
        output, samples = judge(self.state, block)
        self.learn(samples)
        return output

    def judge_few(self, z: Float[Tensor, "T d"], judge: JudgeFew, append: AppendRows = with_rows_at) -> DetectorOutput:
        """The readings of few samples, at most as many as `until_update` allows, and learn them."""
        output, samples = judge(self.state, z)
        pending, count = self.state.pending, samples.shape[0]
        if count == self.until_update or self.latest + count > LATEST:
            self.learn(pending.unpacked(samples))
            return output
        latest = append(pending.latest, samples, self.latest)
        self.state = self.state._replace(pending=pending._replace(latest=latest))
        self.seen, self.waiting, self.latest = self.seen + count, self.waiting + count, self.latest + count
        return output

    def finish(self) -> PooledState:
        """The state after all that was learned."""
        numbers = self.seen, self.waiting, self.latest
        seen, waiting, latest = (torch.from_numpy(np.array(number)) for number in numbers)  # faster than torch.tensor
        return self.state._replace(seen=seen, pending=self.state.pending._replace(size=waiting, latest_size=latest))

    def learn(self, samples: SampleRows) -> None:
        """Learn samples: at once, with the pending ones, where an update is due, else later."""
        is_due = len(samples.z) >= self.until_update
        self.seen += len(samples.z)
        if is_due:
            self._update(self.state.pending.all(self.waiting, self.latest, samples))
            self.waiting = self.latest = 0
        else:
            self.state = self.state._replace(pending=self._pending_with(samples))
            self.waiting += len(samples.z)

    def _pending_with(self, samples: SampleRows) -> Pending:
        """The pending samples and more, none of them packed any longer."""
        pending, earlier = self.state.pending, self.waiting - self.latest
        more = pending.all(self.latest, self.latest, samples)
        self.latest = 0
        joined = map_state(lambda rows, new: with_rows_at(rows, new, earlier), pending.samples, more)
        return pending._replace(samples=joined)

    def _update(self, samples: SampleRows) -> None:
        sums, before = self.state.sums, self.seen - len(samples.z)
        samples, learned = new_samples(samples, self.state.learned)
        sums = sums.add_(samples, before) if self._owns_sums else sums.updated(samples, before)
        self._owns_sums = True
        self.state = self.state._replace(sums=sums, learned=learned, fitted=Fitted.of(sums, self.seen, self.labels))
