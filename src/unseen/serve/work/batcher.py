"""Micro-batching: requests that arrive while a block is computed become the next block."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from unseen.errors import ServiceError

WAIT_SHARE = 0.25  # how long a small block waits for more requests, as a share of the time of the block before it


class Sized(Protocol):
    """A request that says how many samples it holds."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Sized)
A = TypeVar("A")


class MicroBatcher(Generic[P, A]):
    """Run `work` on one block of requests at a time.

    Every stream has one block in the shared pool at most, so a busy stream does not fill the queue before the others.
    A block with less than half the requests of the one before waits a moment, because the callers just answered are
    about to send again, and a block costs nearly the same for one sample as for eight.
    """

    def __init__(
        self, work: Callable[[Sequence[P]], Sequence[A | Exception]], pool: Executor, *, block: int, queue: int
    ) -> None:
        self._work, self._pool, self._block, self._queue = work, pool, block, queue
        self._requests: deque[tuple[P, asyncio.Future[A]]] = deque()
        self._oldest = 0.0  # when the first request that waits came
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0  # samples that wait for the next block
        self._last_requests, self._last_seconds = 0, 0.0  # of the last block
        self._enough: asyncio.Future[None] | None = None

    async def __call__(self, request: P) -> A:
        """Return the answer to one request; refuse it when too many samples wait already."""
        if self._requests and self.waiting + len(request) > self._queue:
            raise ServiceError(
                429, f"expected at most {self._queue} samples waiting, got more; try again in a moment", "queue"
            )
        answer = asyncio.get_running_loop().create_future()
        if not self._requests:
            self._oldest = time.monotonic()
        self._requests.append((request, answer))
        self.waiting += len(request)
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        elif self._enough and not self._enough.done() and self._is_enough():
            self._enough.set_result(None)
        return await answer

    @property
    def age(self) -> float:
        """Return for how many seconds, at most, a request has waited for the next block."""
        return time.monotonic() - self._oldest if self._requests else 0.0

    async def idle(self) -> None:
        """Wait until every request is answered."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._requests:
                if not self._is_enough():
                    await self._wait_for_more()
                await self._answer(self._next_block())
        finally:
            self._task = None

    def _is_enough(self) -> bool:
        return 2 * len(self._requests) >= self._last_requests or self.waiting >= self._block

    async def _wait_for_more(self) -> None:
        self._enough = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._enough], timeout=WAIT_SHARE * self._last_seconds)
        self._enough = None

    def _next_block(self) -> list[tuple[P, asyncio.Future[A]]]:
        self._leave_out_gone()
        if not self._requests:
            return []
        block = [self._requests.popleft()]
        size = len(block[0][0])
        while self._requests and size + len(self._requests[0][0]) <= self._block:
            block.append(self._requests.popleft())
            size += len(block[-1][0])
        self.waiting -= size
        return block

    def _leave_out_gone(self) -> None:
        """Drop the requests of callers that have gone: when the service stops, it waits for nobody."""
        gone = [pair for pair in self._requests if pair[1].done()]
        if gone:
            self.waiting -= sum(len(request) for request, _ in gone)
            self._requests = deque(pair for pair in self._requests if not pair[1].done())

    async def _answer(self, block: list[tuple[P, asyncio.Future[A]]]) -> None:
        if not block:
            return
        answers: Sequence[A | Exception]
        started = time.perf_counter()
        try:
            requests = [request for request, _ in block]
            answers = await asyncio.get_running_loop().run_in_executor(self._pool, self._work, requests)
        except Exception as error:  # whatever broke the block is the answer to all of it
            answers = [error] * len(block)
        self._last_requests, self._last_seconds = len(block), time.perf_counter() - started
        for (_, future), answer in zip(block, answers, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
