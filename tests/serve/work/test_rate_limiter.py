"""The token bucket of each owner."""

from __future__ import annotations

import pytest

from helpers.service import RateLimiter
from unseen.errors import ServiceError


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
