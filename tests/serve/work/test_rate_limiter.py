"""The token bucket of each owner."""

from __future__ import annotations

import pytest

from unseen.errors import ServiceError
from unseen.serve.work.threads import RateLimiter


def test_the_rate_is_per_owner_and_recovers():
    now = [0.0]
    rate = RateLimiter(10, clock=lambda: now[0])
    rate.take("a", 20)
    with pytest.raises(ServiceError, match="at most 10 samples a second"):
        rate.take("a", 1)
    rate.take("b", 20)
    now[0] = 1
    rate.take("a", 10)


def test_callers_that_have_gone_are_forgotten(monkeypatch):
    monkeypatch.setattr("unseen.serve.work.threads.CALLERS", 3)
    now = [0.0]
    rate = RateLimiter(10, clock=lambda: now[0])
    for name in ("a", "b", "c"):
        rate.take(name, 5)
    now[0] = 10
    rate.take("d", 5)
    assert list(rate._level) == ["d"]
