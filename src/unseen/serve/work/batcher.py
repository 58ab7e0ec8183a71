"""Micro-batching: requests that arrive while a block is computed become the next block."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Generic, Protocol, TypeVar

from unseen.errors import ServiceError

WAIT_SHARE = 0.25  # how long a small block waits for more requests, as a share of the time of the block before it
LONG = 0.003  # seconds of a block after which the next one does not wait for the loop
POLL = 0.005  # seconds between two looks whether every request is answered


class Sized(Protocol):
    """A request that says how many samples it holds."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Sized)
A = TypeVar("A")
Block = list[tuple[P, asyncio.Future[A]]]


class MicroBatcher(Generic[P, A]):
    """Run `work` on one block of requests at a time.

    Every stream has one block in the shared pool at most, so a busy stream does not fill the queue before the others.
    The thread that has done a long block hands the next one to the pool itself: the loop may be busy with other
    requests for as long. After a short one the loop does that, and more requests share a block. A block with less than
    half the requests of the one before waits a moment, because the callers just answered are about to send again, and a
    block costs nearly the same for one sample as for eight.
    """

    def __init__(
        self, work: Callable[[Sequence[P]], Sequence[A | Exception]], pool: Executor, *, block: int, queue: int
    ) -> None:
        self._work, self._pool, self._block, self._queue = work, pool, block, queue
        self._lock = threading.Lock()  # of what the loop and the threads of the pool share
        self._requests: deque[tuple[P, asyncio.Future[A]]] = deque()
        self._oldest = 0.0  # when the first request that waits came
        self.waiting = 0  # samples that wait for the next block
        self._is_at_work = False  # whether the pool has a block
        self._last_requests, self._last_seconds = 0, 0.0  # of the last block
        self._timer: asyncio.TimerHandle | None = None  # that starts a small block
        self._is_starting = False  # whether the loop is about to look if a block can start
        self._unanswered = 0  # requests

    async def __call__(self, request: P) -> A:
        """The answer to one request; refuse it when too many samples wait already."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        with self._lock:
            self._queue_up(request, answer)
        self._unanswered += 1
        try:
            if not self._is_starting:
                self._is_starting = True
                loop.call_soon(self._start, loop)  # in the next turn: what came in this one shares a block
            return await answer
        finally:
            self._unanswered -= 1

    @property
    def age(self) -> float:
        """For how many seconds, at most, a request has waited for the next block."""
        return time.monotonic() - self._oldest if self._requests else 0.0

    async def idle(self) -> None:
        """Wait until every request is answered."""
        while self._unanswered:
            await asyncio.sleep(POLL)

    def _queue_up(self, request: P, answer: "asyncio.Future[A]") -> None:
        if self._requests and self.waiting + len(request) > self._queue:
            raise ServiceError(
                429, f"expected at most {self._queue} samples waiting, got more; try again in a moment", "queue"
            )
        if not self._requests:
            self._oldest = time.monotonic()
        self._requests.append((request, answer))
        self.waiting += len(request)

    def _start(self, loop: asyncio.AbstractEventLoop, *, is_late: bool = False) -> None:
        """Start a block, unless one is at work or more requests are about to come."""
        self._is_starting = False
        if is_late:
            self._timer = None
        with self._lock:
            if self._is_at_work or not self._requests:
                return
            self._is_at_work = is_late or self._is_enough()
        if self._is_at_work:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            self._pool.submit(self._run_block, loop)
        elif self._timer is None:
            self._timer = loop.call_later(WAIT_SHARE * self._last_seconds, partial(self._start, loop, is_late=True))

    def _is_enough(self) -> bool:
        return 2 * len(self._requests) >= self._last_requests or self.waiting >= self._block

    def _run_block(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do one block in a thread of the pool, go on with the next, and let the loop answer."""
        with self._lock:
            block = self._next_block()
        answers = self._answers(block) if block else ()
        with self._lock:
            is_long = self._last_seconds > LONG
            self._is_at_work = goes_on = is_long and bool(self._requests) and self._is_enough()
        if goes_on:
            self._pool.submit(self._run_block, loop)
        loop.call_soon_threadsafe(self._hand_over, loop, block, answers)

    def _next_block(self) -> Block[P, A]:
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

    def _answers(self, block: Block[P, A]) -> Sequence[A | Exception]:
        answers: Sequence[A | Exception]
        started = time.perf_counter()
        try:
            answers = self._work([request for request, _ in block])
        except Exception as error:  # whatever broke the block is the answer to all of it
            answers = [error] * len(block)
        self._last_requests, self._last_seconds = len(block), time.perf_counter() - started
        return answers

    def _hand_over(self, loop: asyncio.AbstractEventLoop, block: Block[P, A], answers: Sequence[A | Exception]) -> None:
        for (_, future), answer in zip(block, answers, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._start(loop)
