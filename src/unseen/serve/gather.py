"""Collect what callers bring while a block is at work, and hand it on as the next block."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from unseen.errors import ServiceError

COMPANY = 0.25  # how long a small block waits for others, in times of the block before it


class Sized(Protocol):
    """A part of a block that says how many samples it holds."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Sized)
A = TypeVar("A")


class Gather(Generic[P, A]):
    """Run `work` on one block of parts at a time.

    Every stream has one block in the shared pool at most: a busy stream takes turns with the others instead of filling
    the queue before them. A block much smaller than the one before waits a moment, because the callers just answered
    are about to ask again, and a block costs nearly the same for one sample as for eight.
    """

    def __init__(
        self, work: Callable[[Sequence[P]], Sequence[A | Exception]], pool: Executor, *, block: int, queue: int
    ) -> None:
        self._work, self._pool, self._block, self._queue = work, pool, block, queue
        self._parts: deque[tuple[P, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0  # samples that wait for the next block
        self._answered, self._took = 0, 0.0  # parts in the last block, seconds it took
        self._company: asyncio.Future[None] | None = None

    async def __call__(self, part: P) -> A:
        """Return the answer to one part; refuse it when too many wait already."""
        if self._parts and self.waiting + len(part) > self._queue:
            raise ServiceError(
                429, f"expected at most {self._queue} samples waiting for a stream, got more; try again in a moment"
            )
        answer = asyncio.get_running_loop().create_future()
        self._parts.append((part, answer))
        self.waiting += len(part)
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        elif self._company and not self._company.done() and self._enough():
            self._company.set_result(None)
        return await answer

    async def idle(self) -> None:
        """Wait until everything that was brought is answered."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._parts:
                if not self._enough():
                    await self._gathered()
                await self._answer(self._next())
        finally:
            self._task = None

    def _enough(self) -> bool:
        return 2 * len(self._parts) >= self._answered or self.waiting >= self._block

    async def _gathered(self) -> None:
        """Wait until about half of the callers are here: the other half is served while they are answered."""
        self._company = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._company], timeout=COMPANY * self._took)
        self._company = None

    def _next(self) -> list[tuple[P, asyncio.Future[A]]]:
        block, size = [self._parts.popleft()], 0
        size = len(block[0][0])
        while self._parts and size + len(self._parts[0][0]) <= self._block:
            block.append(self._parts.popleft())
            size += len(block[-1][0])
        self.waiting -= size
        return block

    async def _answer(self, block: list[tuple[P, asyncio.Future[A]]]) -> None:
        answers: Sequence[A | Exception]
        started = time.perf_counter()
        try:
            parts = [part for part, _ in block]
            answers = await asyncio.get_running_loop().run_in_executor(self._pool, self._work, parts)
        except Exception as error:  # whatever broke the block is the answer to all of it
            answers = [error] * len(block)
        self._answered, self._took = len(block), time.perf_counter() - started
        for (_, future), answer in zip(block, answers, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
