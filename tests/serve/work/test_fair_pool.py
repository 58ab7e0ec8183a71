"""A pool that shares its threads between owners."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from unseen.serve.work.fair_pool import FairThreadPool


def test_a_fair_pool_serves_owners_round_robin():
    pool, gate, order = FairThreadPool(1, "test"), threading.Event(), []

    def work(name):
        gate.wait(10)
        order.append(name)

    submitted: list[Future] = [pool.executor("a").submit(work, f"a{i}") for i in range(4)]
    submitted += [pool.executor(owner).submit(work, owner) for owner in ("b", "c")]
    gate.set()
    for future in submitted:
        future.result(10)
    assert order == ["a0", "b", "c", "a1", "a2", "a3"] or order == ["a0", "a1", "b", "c", "a2", "a3"]
    pool.close()


def test_a_fair_pool_returns_an_exception_to_its_submitter():
    pool = FairThreadPool(1, "test")
    with pytest.raises(ZeroDivisionError):
        pool.executor("a").submit(lambda: 1 / 0).result(10)
    assert pool.executor("a").submit(lambda: 1).result(10) == 1
    pool.close()
