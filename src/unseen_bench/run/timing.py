"""Times for benchmarks: medians of a few repetitions."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch


def median_seconds(
    work: Callable[[], object], *, repeat: int = 3, warmup: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The median time of `work` after `warmup` calls, until what it started on a GPU has ended."""
    times = [_seconds(work, clock) for _ in range(warmup + repeat)]
    return statistics.median(times[warmup:])


def alternating_seconds(
    works: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The times of several works in alternation, so that other work on the machine slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(_seconds(work, clock))
    return seconds


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    _synchronize()
    started = clock()
    work()
    _synchronize()
    return clock() - started


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile of some seconds, in milliseconds."""
    found = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [*times] * 99
    return {"p50_ms": 1e3 * found[49], "p99_ms": 1e3 * found[98]}
