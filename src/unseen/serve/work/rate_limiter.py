"""A token bucket per owner."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from unseen.errors import ServiceError


@dataclass
class RateLimiter:
    """A bucket per owner that fills at `rate` a second and holds two seconds' worth."""

    rate: float
    clock: Callable[[], float] = time.monotonic  # a jump of the wall clock changes nothing
    _level: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, owner: str, amount: int) -> None:
        """Take `amount` from an owner's bucket, or refuse and say how long to wait."""
        if not self.rate:
            return
        now, most = self.clock(), 2 * self.rate
        level, then = self._level.get(owner, (most, now))
        level = min(most, level + (now - then) * self.rate)
        if level < min(amount, most):
            wait = (min(amount, most) - level) / self.rate
            raise ServiceError(429, f"expected at most {self.rate:g} samples a second, got more; wait {wait:.1f} s")
        self._level[owner] = level - amount, now
