"""The runs of a benchmark on Ray: one task each, rows in the order of the runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from unseen.keyed import one_thread
from unseen.scale.cluster import task_results
from unseen_bench.run import Executor, Row, Run, RunResult, execute
from unseen_bench.run.executors import from_arrays, to_arrays
from unseen_bench.suites import Suite

AHEAD = 4  # runs sent out per core: rows come back in order, so a long one must not leave the others idle


def on_ray(ray: Any, *, ahead: int = AHEAD) -> Executor:
    """An executor that sends the suite to the cluster once and every run as a task."""

    def executor(suite: Suite, runs: Sequence[Run]) -> Iterator[RunResult]:
        task, shared = ray.remote(max_retries=5)(_work), ray.put(suite)
        results = task_results(ray, lambda run: task.remote(shared, run), runs, ahead=ahead, in_order=True)
        return map(from_arrays, results)

    return executor


def _work(suite: Suite, run: Run) -> tuple[Row, dict[str, Any]]:
    with one_thread():
        return to_arrays(execute(suite, run))
