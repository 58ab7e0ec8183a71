"""Run many runs, in processes of this machine or on a GPU; the rows are the same, in the same order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from unseen.keyed import one_thread
from unseen_bench.run.execute import CPU, RunResult, execute, execute_many, run_identity
from unseen_bench.run.experiment import core_count, map_in_processes, resume
from unseen_bench.run.results import ResultFolder, Row, row_key
from unseen_bench.run.runs import LABEL_FREE, Run
from unseen_bench.suites import Source, Suite
from unseen_bench.suites.loading import reload

Executor = Callable[[Suite, Sequence[Run]], Iterator[RunResult]]  # results in the order of the runs
LITTLE = 20_000  # samples of all runs: fewer are done before another process has imported torch


def run_all(
    suite: Suite,
    runs: Sequence[Run],
    results: ResultFolder | None = None,
    *,
    workers: int | None = None,
    device: str = CPU,
) -> Iterator[tuple[Run, Row]]:
    """Yield each run with its row, in the order of `runs`; what `results` holds is read, the rest computed and added.

    There are `workers` processes; on another device than the CPU one does all runs, and those that differ only in the
    arrival order together.
    """
    compute_runs = in_processes(workers) if device == CPU else on_device(device)

    def compute(missing: list[int]) -> Iterator[Row]:
        for row, samples in compute_runs(suite, [runs[position] for position in missing]):
            if results:
                results.add(row, samples)
            yield row

    keys = [row_key(run_identity(suite, run, device=device)) for run in runs]
    return zip(runs, resume(keys, results.rows() if results else {}, compute), strict=True)


def in_processes(workers: int | None = None) -> Executor:
    """An executor in several processes: if not given, as many as cores, and one for little work.

    Each process loads the suite from its source. Every run has one torch thread, so that rounding, and with it every
    digit of a row but its seconds, is the same for any number of workers.
    """

    def executor(suite: Suite, runs: Sequence[Run]) -> Iterator[RunResult]:
        is_little = len(suite.pool.z) * len(runs) < LITTLE
        count = min(workers or (1 if is_little else core_count()), len(runs))
        if count <= 1:
            yield from map(partial(_execute_on_one_thread, suite), runs)
            return
        for row, arrays in map_in_processes(partial(_work, suite.source), runs, count):
            yield RunResult(row, {name: torch.from_numpy(values) for name, values in arrays.items()})

    return executor


def on_device(device: str) -> Executor:
    """An executor that does runs that differ only in the arrival order in one call of their detector."""

    def executor(suite: Suite, runs: Sequence[Run]) -> Iterator[RunResult]:
        groups: dict[Run, list[Run]] = {}
        for run in runs:
            groups.setdefault(_without_order(run), []).append(run)
        done: dict[Run, RunResult] = {}
        for run in runs:
            if run not in done:
                group = groups[_without_order(run)]
                if run.kind == LABEL_FREE and len(group) > 1:
                    done.update(zip(group, execute_many(suite, group, device=device), strict=True))
                else:
                    done[run] = execute(suite, run, device=device)
            yield done.pop(run)

    return executor


def _execute_on_one_thread(suite: Suite, run: Run) -> RunResult:
    with one_thread():
        return execute(suite, run)


def _without_order(run: Run) -> Run:
    return replace(run, order="", seed=0)


def _work(source: Source, run: Run) -> tuple[Row, dict[str, Any]]:
    """A result for another process: a tensor would travel as a handle to shared memory, an array as bytes."""
    row, samples = execute(_load_suite(source), run)
    return row, {name: values.numpy() for name, values in samples.items()}


@cache
def _load_suite(source: Source) -> Suite:
    torch.set_num_threads(1)
    return reload(source)
