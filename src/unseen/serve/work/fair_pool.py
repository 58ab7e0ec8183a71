"""Fairness between owners: one with much to do delays another by one piece of work, and may send so much a second."""

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from unseen.errors import ServiceError
from unseen.serve.work.caller_limiter import Activity
from unseen.serve.work.time_slices import begin_slices, end_slice

CALLERS = 10_000  # whose rates are remembered
PARSERS_REST, CHORES_REST = 3.0, 1.0  # so many times the CPU time that they took, while other owners are active
T = TypeVar("T")
Job = tuple[Future[Any], Callable[[], Any]]


class FairThreadPool:
    """Threads that owners share by the time their work takes, `workers` of them at most for one owner.

    While another owner is active it is one less, and there is one thread more, so that an owner whose work is long does
    not keep a second one waiting. Of those that wait, the owner that used least time comes next; one that was idle
    starts level with the others. `rest` is for work that runs Python, which no two threads do at once: while another
    owner is active, a thread rests that many times as long as it worked, between two slices and after the last.
    """

    def __init__(
        self,
        workers: int,
        name: str,
        *,
        compute: int = 1,
        nice: int = 0,
        rest: float = 0.0,
        activity: Activity | None = None,
    ) -> None:
        self._most, self._threads, self._rest = workers, workers + 1, rest
        self._pool = thread_pool(self._threads, name, compute=compute, nice=nice)
        self._waiting: dict[str, deque[Job]] = {}
        self._running: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}  # of those that wait or run
        self._changed = threading.Condition()
        self._activity = activity or Activity()

    def executor(self, owner: str) -> Executor:
        """An executor whose work counts as that of one owner."""
        return OwnerExecutor(self, owner)

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Queue a piece of work behind what its owner already submitted."""
        future: Future[T] = Future()
        with self._changed:
            self._activity.note(owner)
            self._seconds.setdefault(owner, min(self._seconds.values(), default=0.0))
            self._waiting.setdefault(owner, deque()).append((future, work))
            self._start_next()
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        with self._changed:
            self._changed.wait_for(lambda: not self._seconds)
        self._pool.shutdown()

    def abandon(self) -> None:
        """Cancel what waits and do not wait for what runs."""
        with self._changed:
            waiting = [future for jobs in self._waiting.values() for future, _ in jobs]
            self._waiting.clear()
        for future in waiting:
            future.cancel()
        self._pool.shutdown(wait=False)

    def _start_next(self) -> None:
        """Start work while there is a thread for it; the lock is held."""
        while self._running.total() < self._threads:
            ready = [owner for owner in self._waiting if self._running[owner] < self._most_of(owner)]
            if not ready:
                return
            owner = min(ready, key=self._seconds.__getitem__)
            job = self._waiting[owner].popleft()
            if not self._waiting[owner]:
                del self._waiting[owner]
            self._running[owner] += 1
            self._pool.submit(self._run, owner, job)

    def _most_of(self, owner: str) -> int:
        """How many threads an owner may use: one less while others are active, so that a core stays for them."""
        return self._most if self._activity.is_alone(owner) else max(1, self._most - 1)

    def _run(self, owner: str, job: Job) -> None:
        started = time.perf_counter()
        begin_slices(0.0 if self._activity.is_alone(owner) else self._rest)
        _run(*job)
        end_slice()
        with self._changed:
            self._running[owner] -= 1
            self._seconds[owner] += time.perf_counter() - started
            if not self._running[owner] and owner not in self._waiting:
                del self._running[owner], self._seconds[owner]
            self._start_next()
            self._changed.notify_all()


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
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
    what: str = "samples"
    code: str = "rate"
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
            raise ServiceError(
                429, f"expected at most {self.rate:g} {self.what} a second, got more; wait {wait:.1f} s", self.code
            )
        self._level[owner] = level - amount, now
        if len(self._level) > CALLERS:  # those whose buckets are full again are as good as new
            full = {name for name, (left, at) in self._level.items() if left + (now - at) * self.rate >= most}
            self._level = {name: one for name, one in self._level.items() if name not in full}


class ServiceThreads:
    """The threads of a service; all compute alike, because a stream may be replayed by another than learned it."""

    def __init__(self, compute: int) -> None:
        self.activity = Activity()  # of all callers, whatever they ask for
        self.writers = FairThreadPool(max(2, len(os.sched_getaffinity(0))), "writer", compute=compute)
        # slow and seldom: create, inspect, download
        self.chores = FairThreadPool(1, "chores", compute=compute, nice=2, rest=CHORES_REST, activity=self.activity)
        # what is large in requests
        self.parsers = FairThreadPool(1, "parse", compute=compute, rest=PARSERS_REST, activity=self.activity)
        # opens streams and takes snapshots, for which nobody waits
        self.keeper = thread_pool(1, "keeper", compute=compute, nice=2)

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        self.writers.close()
        self.parsers.close()
        self.chores.close()
        self.keeper.shutdown()


def thread_pool(count: int, name: str, *, compute: int = 1, nice: int = 0) -> ThreadPoolExecutor:
    """A pool whose threads each compute on `compute` cores, at a lower priority where `nice` is above 0."""
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
