"""The threads of a service, and how much of something one caller may take."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from unseen.errors import ServiceError
from unseen.serve.settings import EVERYONE

CALLERS = 10_000  # whose rates are remembered


class Threads:
    """The threads of a service: each owner has a few of its own, which the system shares the cores out to.

    All compute alike, because a stream may be replayed by another thread than learned it.
    """

    def __init__(self, compute: int) -> None:
        self._compute, self._most = compute, max(2, len(os.sched_getaffinity(0)))
        self._pools: dict[tuple[str, str], ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        # opens streams and takes snapshots, for which nobody waits
        self.keeper = thread_pool(1, "keeper", compute=compute, nice=2)

    def writers(self, owner: str) -> Executor:
        """Where samples of an owner are parsed, learned and scored."""
        return self._pool("writer", owner, self._most, 0)

    def chores(self, owner: str) -> Executor:
        """Where an owner's slow and seldom requests are worked on: create, inspect, download."""
        return self._pool("chores", owner, 1, 2)

    def downloads(self, owner: str) -> Executor:
        """Where files are written that an owner downloads."""
        return self._pool("downloads", owner, 1, 2)

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        for pool in (*self._pools.values(), self.keeper):
            pool.shutdown()

    def _pool(self, name: str, owner: str, most: int, nice: int) -> ThreadPoolExecutor:
        with self._lock:
            if (name, owner) not in self._pools:
                self._pools[name, owner] = thread_pool(most, name, compute=self._compute, nice=nice)
            return self._pools[name, owner]


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


class ByteQuota:
    """The bytes of requests that are held: so many in all, so many of one owner other than the operator."""

    def __init__(self, total: int, each: int) -> None:
        self._total, self._each = total, each
        self.held: Counter[str] = Counter()

    def take(self, owner: str, amount: int) -> None:
        """Count bytes as held by an owner; refuse what is over its quota, or over what there is."""
        if owner != EVERYONE and self.held[owner] + amount > self._each:
            what = f"expected at most {self._each:,} bytes of requests of one caller at once, got more"
            raise ServiceError(429, f"{what}; wait for answers", "bytes")
        if self.held.total() + amount > self._total:
            what = f"expected at most {self._total:,} bytes of requests of all callers at once, got more"
            raise ServiceError(503, f"{what}; try again")
        self.held[owner] += amount

    def give_back(self, owner: str, amount: int) -> None:
        """Count bytes as free again."""
        self.held[owner] -= amount
        if not self.held[owner]:
            del self.held[owner]
