"""Fairness between owners: one with much to do delays another by one piece of work, and may send so much a second."""

import contextlib
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from unseen.errors import ServiceError

T = TypeVar("T")


class FairThreadPool:
    """A pool of threads that serves owners round-robin, one piece of work of each at a time."""

    def __init__(self, workers: int, name: str, *, compute: int = 1, nice: int = 0) -> None:
        self._pool = thread_pool(workers, name, compute=compute, nice=nice)
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._lock = threading.Lock()

    def executor(self, owner: str) -> Executor:
        """Return an executor whose work counts as that of one owner."""
        return OwnerExecutor(self, owner)

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Queue a piece of work behind what its owner already submitted."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(owner, deque()).append((future, work))
        self._pool.submit(self._run_next)
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        self._pool.shutdown()

    def _run_next(self) -> None:
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
        except BaseException as error:  # belongs to whoever submitted it
            future.set_exception(error)


class OwnerExecutor(Executor):
    """A FairThreadPool as seen by one owner."""

    def __init__(self, pool: FairThreadPool, owner: str) -> None:
        self._pool, self._owner = pool, owner

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Queue a call."""
        return self._pool.submit(self._owner, partial(fn, *args, **kwargs))


@dataclass
class RateLimiter:
    """A bucket per owner that fills at `rate` a second and holds two seconds' worth."""

    rate: float
    clock: Callable[[], float] = time.monotonic  # a jump of the wall clock changes nothing
    _level: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, owner: str, amount: int) -> None:
        """Take `amount` from an owner's bucket, or refuse and say how long to wait."""
        if not self.rate:
            return
        now, most = self.clock(), 2 * self.rate
        level, then = self._level.get(owner, (most, now))
        level = min(most, level + (now - then) * self.rate)
        if level < min(amount, most):
            wait = (min(amount, most) - level) / self.rate
            raise ServiceError(429, f"expected at most {self.rate:g} samples a second, got more; wait {wait:.1f} s")
        self._level[owner] = level - amount, now


class ServiceThreads:
    """The threads of a service; all compute alike, because a stream may be replayed by another than learned it."""

    def __init__(self, compute: int) -> None:
        self.writers = FairThreadPool(max(2, len(os.sched_getaffinity(0))), "writer", compute=compute)
        self.chores = FairThreadPool(2, "chores", compute=compute)  # slow and seldom: create, inspect, download
        self.keeper = thread_pool(1, "keeper", compute=compute)  # opens streams and takes snapshots

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        self.writers.close()
        self.chores.close()
        self.keeper.shutdown()


def thread_pool(count: int, name: str, *, compute: int = 1, nice: int = 0) -> ThreadPoolExecutor:
    """Return a pool whose threads each compute on `compute` cores, at a lower priority where `nice` is above 0."""
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
