"""The runs of a benchmark on Ray: one task each, rows in the order of the runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from unseen.bench import Executor, Row, Run, RunResult, execute
from unseen.bench.executors import from_arrays, to_arrays
from unseen.scale.cluster import fetched
from unseen.suites import Suite
from unseen.threads import one_thread

AHEAD = 4  # runs sent out per core: rows come back in order, so a long one must not leave the others idle


def on_ray(ray: Any, *, ahead: int = AHEAD) -> Executor:
    """Return an executor that sends the suite to the cluster once and every run as a task."""

    def executor(suite: Suite, runs: Sequence[Run]) -> Iterator[RunResult]:
        task, shared = ray.remote(max_retries=5)(_work), ray.put(suite)
        limit = max(2, ahead * int(ray.cluster_resources().get("CPU", 1)))
        waiting, running = deque(runs), deque[Any]()
        while waiting or running:
            while waiting and len(running) < limit:
                running.append(task.remote(shared, waiting.popleft()))
            yield from_arrays(fetched(ray, running.popleft()))

    return executor


def _work(suite: Suite, run: Run) -> tuple[Row, dict[str, Any]]:
    with one_thread():
        return to_arrays(execute(suite, run))
