"""Collect what callers bring while a block is at work, and hand it on as the next block."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from unseen.errors import ServiceError


class Sized(Protocol):
    """A part of a block that says how many samples it holds."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Sized)
A = TypeVar("A")


class Gather(Generic[P, A]):
    """Run `work` on one block of parts at a time.

    Every stream has one block in the shared pool at most and the pool is first come, first served: a busy stream takes
    turns with the others instead of filling the queue before them.
    """

    def __init__(
        self, work: Callable[[Sequence[P]], Sequence[A | Exception]], pool: Executor, *, block: int, queue: int
    ) -> None:
        self._work, self._pool, self._block, self._queue = work, pool, block, queue
        self._waiting: deque[tuple[P, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Return how many samples wait for the next block."""
        return sum(len(part) for part, _ in self._waiting)

    async def __call__(self, part: P) -> A:
        """Return the answer to one part; refuse it when too many wait already."""
        if self._waiting and self.waiting + len(part) > self._queue:
            raise ServiceError(
                429, f"expected at most {self._queue} samples waiting for a stream, got more; try again in a moment"
            )
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((part, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await answer

    async def idle(self) -> None:
        """Wait until everything that was brought is answered."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._waiting:
                block = self._next()
                await self._answer(block)
        finally:
            self._task = None

    def _next(self) -> list[tuple[P, asyncio.Future[A]]]:
        block, size = [self._waiting.popleft()], 0
        size = len(block[0][0])
        while self._waiting and size + len(self._waiting[0][0]) <= self._block:
            block.append(self._waiting.popleft())
            size += len(block[-1][0])
        return block

    async def _answer(self, block: list[tuple[P, asyncio.Future[A]]]) -> None:
        answers: Sequence[A | Exception]
        try:
            parts = [part for part, _ in block]
            answers = await asyncio.get_running_loop().run_in_executor(self._pool, self._work, parts)
        except Exception as error:  # whatever broke the block is the answer to all of it
            answers = [error] * len(block)
        for (_, future), answer in zip(block, answers, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
