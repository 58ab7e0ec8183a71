"""Experiments that resume: an experiment is a list of cases, a case a key and the job that computes its row.

    cases = (Case({"suite": name, "seed": seed}, partial(measure, name, seed)) for name in names for seed in range(3))
    for row in run_experiment(cases, Path("rows.jsonl")): ...

A row in the file is not computed again unless the code that decides numbers has changed since.
"""

import math
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unseen_bench.run.results import Row, append_row, canonical_json, read_rows
from unseen_bench.run.version import code_version

T = TypeVar("T")
R = TypeVar("R")


class Case(NamedTuple):
    """One measurement: what identifies it, and the job that makes it."""

    key: Row
    job: Callable[[], Row]


def resume(keys: Sequence[str], done: dict[str, Row], compute: Callable[[list[int]], Iterator[Row]]) -> Iterator[Row]:
    """Yield the row of every key, in order: from `done`, or from `compute`.

    `compute` gets the positions of the missing keys, each key once, and yields their rows in that order.
    """
    first = {key: position for position, key in reversed(list(enumerate(keys)))}
    fresh = compute([position for position, key in enumerate(keys) if key not in done and first[key] == position])
    for key in keys:
        if key not in done:
            done[key] = next(fresh)
        yield done[key]


def run_experiment(
    cases: Iterable[Case],
    path: Path | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Row]:
    """Yield key and row of every case as one dict, computing only what the file at `path` does not have."""
    listed, version = list(cases), code_version()
    done = {canonical_json(row["key"]): row for row in read_rows(path) if row.get("version") == version}

    def compute(missing: list[int]) -> Iterator[Row]:
        for case in (listed[position] for position in missing):
            row = {"key": case.key, "version": version, **finite(case.job())}
            if path:
                append_row(path, row)
            yield row

    rows = resume([canonical_json(case.key) for case in listed], done, compute)
    for number, (case, row) in enumerate(zip(listed, rows, strict=True), start=1):
        progress(number, len(listed))
        yield {**case.key, **{name: value for name, value in row.items() if name != "key"}}


def finite(row: Row) -> Row:
    """The row with None for every float that is not finite: JSON has no NaN."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of the named fields, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return dict(groups)


def mean(rows: Iterable[Row], name: str) -> float:
    """The mean of one field over rows, leaving out those where it is undefined; NaN if it is nowhere defined."""
    values = [row[name] for row in rows if row[name] is not None]
    return math.fsum(values) / len(values) if values else math.nan


def core_count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """Yield the result of every item, computed by `workers` processes that each import the code again."""
    context = multiprocessing.get_context("spawn")  # a forked torch may hang in its threads
    quiet: tuple[Any, ...] = (signal.SIGINT, signal.SIG_DFL)  # on Ctrl-C a worker ends without a traceback of its own
    with ProcessPoolExecutor(workers, mp_context=context, initializer=signal.signal, initargs=quiet) as processes:
        try:
            yield from processes.map(function, items)
        finally:
            processes.shutdown(cancel_futures=True)
