"""Run many runs, in processes of this machine or on a GPU; the rows are the same, in the same order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from unseen.keyed import one_thread
from unseen_bench.run.execute import CPU, RunResult, execute, execute_many, run_identity
from unseen_bench.run.results import ResultFolder, Row, core_count, map_in_processes, resume, row_key
from unseen_bench.run.runs import LABEL_FREE, Run
from unseen_bench.suites import Source, Suite
from unseen_bench.suites.loading import reload


def run_all(
    suite: Suite,
    runs: Sequence[Run],
    results: ResultFolder | None = None,
    *,
    workers: int | None = None,
    device: str = CPU,
) -> Iterator[tuple[Run, Row]]:
    """Yield each run with its row, in the order of `runs`; what `results` holds is read, the rest computed and added.

    There are `workers` processes, as many as cores if not given; on another device than the CPU one does all runs, and
    those that differ only in the arrival order together.
    """

    def compute(missing: list[int]) -> Iterator[Row]:
        chosen = [runs[position] for position in missing]
        count = min(workers or core_count(), len(chosen))
        found = on_device(suite, chosen, device) if device != CPU else in_processes(suite, chosen, count)
        for row, samples in found:
            if results:
                results.add(row, samples)
            yield row

    keys = [row_key(run_identity(suite, run, device=device)) for run in runs]
    return zip(runs, resume(keys, results.rows() if results else {}, compute), strict=True)


def in_processes(suite: Suite, runs: Sequence[Run], count: int) -> Iterator[RunResult]:
    """Yield the result of each run, from `count` processes that load the suite from its source.

    Every run has one torch thread, so that rounding, and with it every digit of a row but its seconds, is the same for
    any number of processes.
    """
    if count > 1:
        for row, arrays in map_in_processes(partial(_work, suite.source), runs, count):
            yield RunResult(row, {name: torch.from_numpy(values) for name, values in arrays.items()})
        return
    for run in runs:
        with one_thread():
            result = execute(suite, run)
        yield result


def on_device(suite: Suite, runs: Sequence[Run], device: str) -> Iterator[RunResult]:
    """Yield the result of each run; runs that differ only in the arrival order are one call of their detector."""
    groups: dict[tuple[Run, bool], list[Run]] = {}
    for run in runs:
        groups.setdefault((replace(run, order="", seed=0), run.is_judged), []).append(run)
    done: dict[Run, RunResult] = {}
    for run in runs:
        group = groups[replace(run, order="", seed=0), run.is_judged]
        if run not in done:
            together = group if run.kind == LABEL_FREE else [run]
            done.update(zip(together, execute_many(suite, together, device=device), strict=True))
        yield done.pop(run)


def _work(source: Source, run: Run) -> tuple[Row, dict[str, Any]]:
    """A result for another process: a tensor would travel as a handle to shared memory, an array as bytes."""
    row, samples = execute(_load_suite(source), run)
    return row, {name: values.numpy() for name, values in samples.items()}


@cache
def _load_suite(source: Source) -> Suite:
    torch.set_num_threads(1)
    return reload(source)
