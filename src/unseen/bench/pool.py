"""All runs of a grid, in several processes where the machine allows, with the same rows in the same order as in one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from unseen.bench.grid import FREE, Run
from unseen.bench.rows import Results, Row, key
from unseen.bench.run import CPU, Outcome, execute, execute_many, identity
from unseen.suites import Source, Suite
from unseen.suites.loading import reload
from unseen.threads import one_thread

Pool = Callable[[Suite, Sequence[Run]], Iterator[Outcome]]  # outcomes in the order of the runs


def outcomes(
    suite: Suite,
    runs: Sequence[Run],
    results: Results | None = None,
    *,
    workers: int | None = None,
    device: str = CPU,
    pool: Pool | None = None,
) -> Iterator[tuple[Run, Row]]:
    """Yield each run with its row, in the order of `runs`; what `results` holds is read, the rest computed and added.

    Each process loads the suite from its source. Every run has one torch thread, so that rounding, and with it every
    digit of a row but its seconds, is the same for any number of workers. `pool` computes elsewhere than in processes
    of this machine. On another device than the CPU one process does all runs, those that differ only in who arrives
    when together.
    """
    done = results.done() if results else {}
    keys = [key(identity(suite, run, device=device)) for run in runs]
    absent = {name: run for run, name in zip(runs, keys, strict=True) if name not in done}  # each of them once
    missing = list(absent.values())
    if pool:
        fresh = pool(suite, missing)
    elif device == CPU:
        fresh = _computed(suite, missing, min(workers or _cores(), len(missing)))
    else:
        fresh = _grouped(suite, missing, device)
    for run, name in zip(runs, keys, strict=True):
        if name not in done:
            row, scores = next(fresh)
            if results:
                results.add(row, scores)
            done[name] = row
        yield run, done[name]


def _computed(suite: Suite, runs: Sequence[Run], workers: int) -> Iterator[Outcome]:
    if workers <= 1:
        for run in runs:
            with one_thread():
                outcome = execute(suite, run)
            yield outcome
        return
    context = multiprocessing.get_context("spawn")  # a forked torch may hang in its threads
    quiet = (signal.SIGINT, signal.SIG_DFL)  # on Ctrl-C a worker ends without a traceback of its own
    with ProcessPoolExecutor(workers, mp_context=context, initializer=signal.signal, initargs=quiet) as pool:
        try:
            for row, scores in pool.map(partial(_work, suite.source), runs):
                yield Outcome(row, torch.from_numpy(scores))
        finally:
            pool.shutdown(cancel_futures=True)


def _grouped(suite: Suite, runs: Sequence[Run], device: str) -> Iterator[Outcome]:
    """Yield outcomes in the order of `runs`, each group of them computed when its first is asked for."""
    groups: dict[Run, list[Run]] = {}
    for run in runs:
        groups.setdefault(_all_but_order(run), []).append(run)
    done: dict[Run, Outcome] = {}
    for run in runs:
        if run not in done:
            alike = groups[_all_but_order(run)]
            if run.kind == FREE and len(alike) > 1:
                done.update(zip(alike, execute_many(suite, alike, device=device), strict=True))
            else:
                done[run] = execute(suite, run, device=device)
        yield done.pop(run)


def _all_but_order(run: Run) -> Run:
    return replace(run, order="", seed=0)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(source: Source, run: Run) -> tuple[Row, Any]:
    row, scores = execute(_loaded(source), run)
    return row, scores.numpy()  # a tensor would travel as a handle to shared memory, which containers are short of


@cache
def _loaded(source: Source) -> Suite:
    torch.set_num_threads(1)
    return reload(source)
