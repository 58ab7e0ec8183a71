"""A state while a block is learned: judged in arrival order, updated at fixed counts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import Reading
from unseen.detectors.pooled.replay import Judge, Replay
from unseen.detectors.pooled.state import Fitted, PooledState, SampleBlock, SampleRows, until_update
from unseen.detectors.state import map_state
from unseen.labels import LabelSpace


class Learning:
    """A state in progress: sums that this call has copied are written to, and counts are plain numbers."""

    def __init__(self, state: PooledState, labels: LabelSpace) -> None:
        self.state, self.labels = state, labels
        self.seen, self.waiting = torch.stack([state.seen, state.pending.size]).tolist()
        self._owns_sums = False
        self._replay: Replay | None = None  # what holds the sums at present

    @property
    def until_update(self) -> int:
        """Return how many samples may come before the next update."""
        return until_update(self.seen)

    def judged(self, block: SampleBlock, judge: Judge, replay: Replay | None = None) -> Reading:
        """Return the readings of samples, at most as many as `until_update` allows, and learn them."""
        is_due = len(block.z) == self.until_update
        if replay and is_due and replay.covers(self.seen, self.waiting):
            return self._replayed(block, replay)
        self._settle()
        reading, samples = judge(self.state, block)
        self._take(samples, is_due=is_due)
        return reading

    def judged_single(self, z: Float[Tensor, "1 d"], replay: Replay) -> Reading:
        """Return the reading of one sample after which no update is due, by way of its graph, and learn it later."""
        reading, samples = replay.single(self.state, z)
        self._take(samples, is_due=False)
        return reading

    def finish(self) -> PooledState:
        """Return the state after all that was learned."""
        self._settle()
        seen = torch.full_like(self.state.seen, self.seen)
        pending = self.state.pending._replace(size=torch.full_like(seen, self.waiting))
        return self.state._replace(seen=seen, pending=pending)

    def _take(self, samples: SampleRows, *, is_due: bool) -> None:
        """Learn samples: at once, with the pending ones, where an update is due, else later."""
        self.seen += len(samples.z)
        if is_due:
            self._update(self.state.pending.first(self.waiting, samples))
            self.waiting = 0
        else:
            self.state = self.state._replace(pending=self.state.pending.with_more(samples, self.waiting))
            self.waiting += len(samples.z)

    def _update(self, samples: SampleRows) -> None:
        sums = self.state.sums if self._owns_sums else map_state(torch.clone, self.state.sums)
        sums.add_(samples, self.seen - len(samples.z))
        self._owns_sums = True
        self.state = self.state._replace(sums=sums, fitted=Fitted.of(sums, self.seen, self.labels))

    def _replayed(self, block: SampleBlock, replay: Replay) -> Reading:
        if self._replay is None:
            self._replay = replay
            replay.load(self.state._replace(seen=torch.full_like(self.state.seen, self.seen)))
        self.seen += len(block.z)
        return replay.step(self.state, block)

    def _settle(self) -> None:
        """Take the sums back from the recorded graphs."""
        if self._replay is not None:
            self.state, self._replay, self._owns_sums = self._replay.unload(self.state), None, True
