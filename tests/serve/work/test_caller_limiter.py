"""So many requests of one caller are worked on at once, and another caller does not wait for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from unseen.serve.work.caller_limiter import Activity, CallerLimiter, Pace


@asynccontextmanager
async def taken(limiter: CallerLimiter, caller: str) -> AsyncIterator[None]:
    await limiter.acquire(caller)
    try:
        yield
    finally:
        limiter.release(caller)


def test_a_caller_with_many_requests_leaves_room_for_another():
    async def check() -> list[str]:
        limiter, ended, free = CallerLimiter(8, Activity()), list[str](), asyncio.Event()
        most = 0
        running = 0

        async def work(caller: str, wait: bool) -> None:
            nonlocal most, running
            async with taken(limiter, caller):
                running += 1
                most = max(most, running)
                if wait:
                    await free.wait()
                running -= 1
                ended.append(caller)

        many = [asyncio.create_task(work("a", True)) for _ in range(10)]
        await asyncio.sleep(0)
        await work("b", False)
        free.set()
        await asyncio.gather(*many)
        assert most == 9  # all that one alone may have, and one of the other
        assert not limiter._running
        assert not limiter._waiting
        return ended

    assert asyncio.run(check()) == ["b", *["a"] * 10]


def test_a_request_that_is_cancelled_gives_its_turn_back():
    async def check() -> None:
        limiter = CallerLimiter(1, Activity())

        async def work() -> None:
            async with taken(limiter, "a"):
                await asyncio.sleep(10)

        first, second = asyncio.create_task(work()), asyncio.create_task(work())
        await asyncio.sleep(0)
        for task in (second, first):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        async with asyncio.timeout(1), taken(limiter, "a"):
            pass

    asyncio.run(check())


def test_a_caller_has_a_quarter_of_its_turns_while_another_is_active():
    async def check() -> int:
        now = [0.0]
        activity = Activity(lambda: now[0])
        limiter, free = CallerLimiter(8, activity), asyncio.Event()
        activity.note("b")

        async def work() -> None:
            async with taken(limiter, "a"):
                await free.wait()

        tasks = [asyncio.create_task(work()) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        beside = limiter._running["a"]
        now[0] = 5.0  # the other has been quiet since
        free.set()
        await asyncio.gather(*tasks)
        assert activity.is_alone("a")
        return beside

    assert asyncio.run(check()) == 2


def test_a_caller_has_its_pace_only_beside_others():
    clock = [0.0]

    async def check() -> tuple[float, float]:
        activity = Activity(lambda: clock[0])
        pace, loop = Pace(0.02, activity), asyncio.get_running_loop()
        started = loop.time()
        for _ in range(500):
            await pace.acquire("a")
        alone = loop.time() - started
        activity.note("b")
        started = loop.time()
        for _ in range(5):
            await pace.acquire("a")
        return alone, loop.time() - started

    alone, beside = asyncio.run(check())
    assert alone < 500 * 0.02
    assert beside > 0.05
