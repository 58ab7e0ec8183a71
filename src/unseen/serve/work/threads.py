"""The threads of a service, blocks of requests that they work on, and how much one caller may take."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from unseen.errors import ServiceError
from unseen.serve.settings import EVERYONE


class Threads:
    """The threads of a service: each owner has a few of its own, which the system shares the cores out to.

    All compute alike, because a stream may be replayed by another thread than learned it.
    """

    def __init__(self, compute: int) -> None:
        self._compute, self._cores = compute, len(os.sched_getaffinity(0))
        self._pools: dict[tuple[str, str], ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        # opens streams and takes snapshots, for which nobody waits
        self.keeper = thread_pool(1, "keeper", compute=compute, nice=2)

    def writers(self, owner: str) -> Executor:
        """Where samples of an owner are parsed, learned and scored."""
        return self._pool("writer", owner, max(2, self._cores), 0)

    def chores(self, owner: str, kind: str = "chores") -> Executor:
        """Where an owner's slow and seldom requests are worked on: create, inspect; its downloads by themselves."""
        return self._pool(kind, owner, 1, 2)

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        for pool in (*self._pools.values(), self.keeper):
            pool.shutdown()

    def _pool(self, kind: str, owner: str, most: int, nice: int) -> ThreadPoolExecutor:
        with self._lock:
            if (kind, owner) not in self._pools:
                self._pools[kind, owner] = thread_pool(most, kind, compute=self._compute, nice=nice)
            return self._pools[kind, owner]


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


P = TypeVar("P", bound=Sized)  # a request that says how many samples it holds
A = TypeVar("A")


class MicroBatcher(Generic[P, A]):
    """Run `work` on one block of requests at a time, in a thread of a pool.

    A block with less than half the requests of the one before waits a moment, because the callers just answered are
    about to send again, and a block costs nearly the same for one sample as for eight.
    """

    def __init__(
        self, work: Callable[[Sequence[P]], Sequence[A | Exception]], pool: Executor, *, block: int, queue: int
    ) -> None:
        self._work, self._pool, self._block, self._queue = work, pool, block, queue
        self._requests: deque[tuple[P, asyncio.Future[A]]] = deque()
        self._more = asyncio.Event()  # whether a small block need not wait
        self._task: asyncio.Task[None] | None = None
        self._oldest = 0.0  # when the first request that waits came
        self.waiting = 0  # samples that wait for the next block
        self._last = 0  # requests of the last block

    async def __call__(self, request: P) -> A:
        """The answer to one request; refuse it when too many samples wait already."""
        if self._requests and self.waiting + len(request) > self._queue:
            raise ServiceError(
                429, f"expected at most {self._queue} samples waiting, got more; try again in a moment", "queue"
            )
        if not self._requests:
            self._oldest = time.monotonic()
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._requests.append((request, answer))
        self.waiting += len(request)
        if 2 * len(self._requests) >= self._last or self.waiting >= self._block:
            self._more.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    @property
    def age(self) -> float:
        """For how many seconds, at most, a request has waited for the next block."""
        return time.monotonic() - self._oldest if self._requests else 0.0

    async def _run(self) -> None:
        """Do one block after the other until no request waits."""
        loop, seconds = asyncio.get_running_loop(), 0.0
        try:
            while block := self._next_block():
                self._last, started = len(block), time.perf_counter()
                self._more.clear()
                answers: Sequence[A | Exception]
                try:
                    answers = await loop.run_in_executor(self._pool, self._work, [request for request, _ in block])
                except Exception as error:  # whatever broke the block is the answer to all of it
                    answers = [error] * len(block)
                seconds = time.perf_counter() - started
                for (_, future), answer in zip(block, answers, strict=True):
                    if future.done():  # the caller has gone
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
                loop.call_later(seconds / 4, self._more.set)
                await self._more.wait()
        finally:
            self._task = None

    def _next_block(self) -> list[tuple[P, asyncio.Future[A]]]:
        """The next requests, but for those whose callers have gone: when the service stops, it waits for nobody."""
        block: list[tuple[P, asyncio.Future[A]]] = []
        size = 0
        while self._requests and (not block or size + len(self._requests[0][0]) <= self._block):
            request, future = self._requests.popleft()
            self.waiting -= len(request)
            if not future.done():
                block.append((request, future))
                size += len(request)
        return block


class RateLimiter:
    """A bucket per owner that fills at `rate` a second and holds two seconds' worth."""

    def __init__(
        self,
        rate: float,
        what: str = "samples",
        code: str = "rate",
        *,
        callers: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._what, self._code, self._callers, self._clock = rate, what, code, callers, clock
        self._level: dict[str, tuple[float, float]] = {}  # of those who took something lately, and when

    def take(self, owner: str, amount: int) -> None:
        """Take `amount` from an owner's bucket, or refuse and say how long to wait."""
        if not self._rate:
            return
        now, most = self._clock(), 2 * self._rate  # a jump of the wall clock changes nothing
        level, then = self._level.pop(owner, (most, now))
        level, wanted = min(most, level + (now - then) * self._rate), min(amount, most)
        self._level[owner] = (level - amount if level >= wanted else level), now
        if level < wanted:
            what = f"expected at most {self._rate:g} {self._what} a second, got more"
            raise ServiceError(429, f"{what}; wait {(wanted - level) / self._rate:.1f} s", self._code)
        if len(self._level) > self._callers:
            del self._level[next(iter(self._level))]  # who has been quiet longest


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
