"""Micro-batching: requests that arrive while a block is computed become the next block."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, NamedTuple, Protocol, TypeVar

from unseen.errors import ServiceError


class Sized(Protocol):
    """A request that says how many samples it holds."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Sized)
A = TypeVar("A")


class Waits(NamedTuple):
    """How long a block waits."""

    share: float = 0.25  # of the time of the block before it, for more requests, where it is small
    poll: float = 0.005  # seconds between two looks whether every request is answered


WAITS = Waits()


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

    async def idle(self) -> None:
        """Wait until every request is answered."""
        while self._task:
            await asyncio.sleep(WAITS.poll)

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
                loop.call_later(WAITS.share * seconds, self._more.set)
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
