"""The runs of a benchmark grid on Ray: one task each, rows in the order of the grid."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from unseen.bench import Outcome, Pool, Row, Run, execute
from unseen.scale.cluster import fetched
from unseen.suites import Suite
from unseen.threads import one_thread

AHEAD = 4  # runs sent out per core: rows come back in order, so a long one must not leave the others idle


def on(ray: Any, *, ahead: int = AHEAD) -> Pool:
    """Return a pool that sends the suite to the cluster once and every run as a task."""

    def pool(suite: Suite, runs: Sequence[Run]) -> Iterator[Outcome]:
        task, shared = ray.remote(max_retries=5)(_work), ray.put(suite)
        limit = max(2, ahead * int(ray.cluster_resources().get("CPU", 1)))
        waiting, running = deque(runs), deque[Any]()
        while waiting or running:
            while waiting and len(running) < limit:
                running.append(task.remote(shared, waiting.popleft()))
            row, scores = fetched(ray, running.popleft())
            yield Outcome(row, torch.from_numpy(scores.copy()))

    return pool


def _work(suite: Suite, run: Run) -> tuple[Row, Any]:
    with one_thread():
        row, scores = execute(suite, run)
    return row, scores.numpy()
