"""Requests that arrive while a block is computed form the next block; each owner has a rate."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.service import MicroBatcher, RateLimiter
from unseen.errors import ServiceError


class Recorder:
    """Work that waits for a gate, records its blocks and answers each request with its length."""

    def __init__(self) -> None:
        self.started, self.gate, self.blocks = threading.Event(), threading.Event(), list[int]()

    def __call__(self, requests: Sequence[str]) -> list[int | Exception]:
        self.started.set()
        self.gate.wait(10)
        self.blocks.append(len(requests))
        return [ValueError(request) if request == "bad" else len(request) for request in requests]


async def answers(work: Recorder, requests: Sequence[str], *, block: int = 100, queue: int = 100) -> list[object]:
    with ThreadPoolExecutor(1) as pool:
        batcher = MicroBatcher(work, pool, block=block, queue=queue)
        first = asyncio.create_task(batcher(requests[0]))
        await asyncio.to_thread(work.started.wait, 10)
        rest = [asyncio.create_task(batcher(request)) for request in requests[1:]]
        await asyncio.sleep(0)  # they wait for the next block now
        work.gate.set()
        found = await asyncio.gather(first, *rest, return_exceptions=True)
        assert batcher.waiting == 0
        return list(found)


def test_requests_of_one_turn_of_the_loop_become_one_block() -> None:
    work = Recorder()
    work.gate.set()

    async def call() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            batcher = MicroBatcher(work, pool, block=100, queue=100)
            return list(await asyncio.gather(*(batcher("a") for _ in range(9))))

    assert asyncio.run(call()) == [1] * 9
    assert work.blocks == [9]


@pytest.mark.parametrize(("block", "blocks"), [(100, [1, 3]), (5, [1, 2, 1])])
def test_requests_that_wait_become_one_block_of_no_more_samples_than_its_limit(block: int, blocks: list[int]) -> None:
    work = Recorder()
    assert asyncio.run(answers(work, ["a", "bb", "ccc", "dddd"], block=block)) == [1, 2, 3, 4]
    assert work.blocks == blocks


def test_a_request_beyond_the_queue_is_refused_with_429() -> None:
    found = asyncio.run(answers(Recorder(), ["a", "bb", "ccc"], queue=3))
    assert found[:2] == [1, 2]
    assert isinstance(found[2], ServiceError)
    assert found[2].status == 429


def test_an_error_of_one_request_is_raised_to_its_caller_only() -> None:
    found = asyncio.run(answers(Recorder(), ["a", "bad", "ccc"]))
    assert found[::2] == [1, 3]
    assert isinstance(found[1], ValueError)


def test_an_error_of_the_block_is_raised_to_every_caller() -> None:
    def broken(requests: Sequence[str]) -> list[int | Exception]:
        raise RuntimeError("broken")

    async def call() -> None:
        with ThreadPoolExecutor(1) as pool:
            await MicroBatcher(broken, pool, block=1, queue=1)("a")

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(call())


def test_the_rate_is_per_owner_and_recovers():
    now = [0.0]
    rate = RateLimiter(10, clock=lambda: now[0])
    rate.take("a", 20)
    with pytest.raises(ServiceError, match="at most 10 samples a second"):
        rate.take("a", 1)
    rate.take("b", 20)
    now[0] = 1
    rate.take("a", 10)


def test_only_so_many_callers_are_remembered_and_those_of_late():
    rate = RateLimiter(10, callers=3, clock=lambda: 0.0)
    for name in ("a", "b", "c", "a", "d"):
        rate.take(name, 20 if name == "b" else 5)
    rate.take("b", 20)  # forgotten, and so as good as new
    rate.take("a", 10)
    with pytest.raises(ServiceError):
        rate.take("a", 5)
