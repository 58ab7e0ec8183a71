"""Map a function over items in several processes of this machine; results come back in the order of the items."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


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
