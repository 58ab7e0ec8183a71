"""Let owners take turns on a few threads: one with much to do delays another by a piece of work, not by all of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Turns:
    """A pool of threads that takes one piece of work of each owner in turn."""

    def __init__(self, workers: int, name: str, *, compute: int = 1, nice: int = 0) -> None:
        self._pool = threads(workers, name, compute=compute, nice=nice)
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, owner: str) -> Executor:
        """Return the place in the queue of one owner."""
        return Turn(self, owner)

    def add(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Put a piece of work behind what its owner already asked for."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(owner, deque()).append((future, work))
        self._pool.submit(self._next)
        return future

    def close(self) -> None:
        """Finish what was asked for."""
        self._pool.shutdown()

    def _next(self) -> None:
        with self._lock:
            owner, jobs = next(iter(self._waiting.items()))
            future, work = jobs.popleft()
            if jobs:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # belongs to whoever asked
            future.set_exception(error)


class Turn(Executor):
    """One owner's end of the queue."""

    def __init__(self, turns: Turns, owner: str) -> None:
        self._turns, self._owner = turns, owner

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Ask for a piece of work."""
        return self._turns.add(self._owner, partial(fn, *args, **kwargs))


def threads(count: int, name: str, *, compute: int = 1, nice: int = 0) -> ThreadPoolExecutor:
    """Return a pool whose threads each compute on `compute` cores, and step back for others where `nice`."""
    return ThreadPoolExecutor(count, name, _begin, (compute, nice))


def _begin(compute: int, nice: int) -> None:
    # torch counts threads per thread but hands the last count set anywhere to a thread at its first use, so the count
    # is set again after that use: bits follow the number of threads
    torch.set_num_threads(compute)
    torch.get_num_threads()
    torch.set_num_threads(compute)
    if nice:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
