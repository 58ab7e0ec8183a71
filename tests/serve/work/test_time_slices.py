"""A thread that runs Python for long rests between slices while other owners are active."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from unseen.serve.work import time_slices
from unseen.serve.work.caller_limiter import Activity
from unseen.serve.work.fair_pool import FairThreadPool
from unseen.serve.work.time_slices import LONGEST, SLICE, TimeSlices, let_others_run


@pytest.fixture
def clock(monkeypatch):
    """Time that only work and rests move."""
    clock = SimpleNamespace(now=0.0, rests=[])
    fake = SimpleNamespace(thread_time=lambda: clock.now, sleep=clock.rests.append)
    monkeypatch.setattr(time_slices, "time", fake)
    return clock


def parse(clock, rows: int) -> None:
    for _ in range(rows):
        clock.now += 0.6 * SLICE
        let_others_run()


def test_a_rest_is_as_long_as_the_slice_says(clock):
    slices = TimeSlices()
    slices.begin(3.0)
    clock.now += 0.02
    slices.end(after=0.01)
    clock.now += 0.005
    slices.end(after=0.01)
    slices.end()
    clock.now += 10.0
    slices.end()
    assert clock.rests == pytest.approx([0.06, 0.015, LONGEST])


def test_a_pool_rests_between_slices_and_after_the_last_while_another_owner_is_active(clock):
    activity = Activity(lambda: 0.0)  # the other stays active however long a thread takes to begin
    pool = FairThreadPool(1, "test", rest=3.0, activity=activity)
    activity.note("b")
    pool.executor("a").submit(parse, clock, 5).result(10)
    pool.close()
    assert clock.rests == pytest.approx([3.6 * SLICE, 3.6 * SLICE, 1.8 * SLICE])


def test_an_owner_that_is_alone_never_rests_nor_does_a_pool_that_only_computes(clock):
    for pool in (FairThreadPool(1, "test", rest=3.0), FairThreadPool(1, "test")):
        for owner in ("a", "b") if pool._rest == 0 else ("a",):
            pool.executor(owner).submit(parse, clock, 5).result(10)
        pool.close()
    assert clock.rests == []


def test_callers_are_noted_while_threads_ask_who_is_active():
    activity, stop = Activity(), threading.Event()
    failed: list[Exception] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                activity.is_alone("a")
        except RuntimeError as error:  # a dict that changed while it was read
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(5_000):
        activity.note(str(number))
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
