"""A pool that shares its threads between owners."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from unseen.serve.work.fair_pool import FairThreadPool


@pytest.mark.timing
def test_a_fair_pool_serves_owners_in_turn():
    pool, gate, order = FairThreadPool(1, "test"), threading.Event(), []

    def work(name):
        gate.wait(10)
        order.append(name)
        time.sleep(0.05)  # much longer than a busy machine takes to begin with the next

    submitted: list[Future] = [pool.executor("a").submit(work, f"a{i}") for i in range(6)]
    submitted += [pool.executor(owner).submit(work, owner) for owner in ("b", "c")]
    gate.set()
    for future in submitted:
        future.result(10)
    assert {"b", "c"} <= set(order[:4])
    pool.close()


def test_an_owner_whose_work_is_long_leaves_a_thread_to_others():
    pool, gate = FairThreadPool(1, "test"), threading.Event()
    long = [pool.executor("a").submit(gate.wait, 10) for _ in range(5)]
    for _ in range(3):
        assert pool.executor("b").submit(lambda: 1).result(5) == 1
    assert not long[0].done()
    gate.set()
    pool.close()
    assert all(future.done() for future in long)


@pytest.mark.timing
def test_an_owner_is_served_less_often_the_longer_its_work_takes():
    pool, order, gate = FairThreadPool(2, "test"), [], threading.Event()

    def work(name, seconds):
        gate.wait(10)
        time.sleep(seconds)
        order.append(name)

    for _ in range(10):
        pool.executor("long").submit(work, "long", 0.15)
        pool.executor("short").submit(work, "short", 0.01)
    gate.set()
    pool.close()
    assert order[:11].count("short") >= 8


def test_a_fair_pool_returns_an_exception_to_its_submitter():
    pool = FairThreadPool(1, "test")
    with pytest.raises(ZeroDivisionError):
        pool.executor("a").submit(lambda: 1 / 0).result(10)
    assert pool.executor("a").submit(lambda: 1).result(10) == 1
    pool.close()
