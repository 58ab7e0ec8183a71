"""Limits per caller: so many requests of one are worked on at once, the others of that caller wait in order."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

RECENT = 1.0  # seconds for which a caller counts as active after a request


class Activity:
    """Which callers were active lately: one that is alone may use everything."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}  # in the order of time
        self._lock = threading.Lock()  # threads ask while the loop takes notes

    def note(self, caller: str) -> None:
        """Note that a caller asks for something."""
        with self._lock:
            now = self._clock()
            self._last.pop(caller, None)
            self._last[caller] = now
            while (oldest := next(iter(self._last))) != caller and self._last[oldest] < now - RECENT:
                del self._last[oldest]

    def is_alone(self, caller: str) -> bool:
        """Whether no other caller was active lately."""
        with self._lock:
            latest = next((at for other, at in reversed(self._last.items()) if other != caller), float("-inf"))
        return latest < self._clock() - RECENT


class Pace:
    """Let a caller go on once every `seconds` while others are active, and at once while it is alone."""

    def __init__(self, seconds: float, activity: Activity) -> None:
        self._seconds, self._activity = seconds, activity
        self._next: dict[str, float] = {}

    async def acquire(self, caller: str) -> None:
        """Wait until a caller may go on."""
        self._activity.note(caller)
        if self._activity.is_alone(caller):
            return
        now = time.monotonic()
        at = max(now, self._next.get(caller, now))
        self._next[caller] = at + self._seconds
        if at > now:
            await asyncio.sleep(at - now)


class CallerLimiter:
    """Let `each` requests of one caller be worked on at once, a quarter of that while others are active.

    The loop takes what is ready in the order it came: a caller with hundreds of requests would otherwise put hundreds
    of pieces of work between two of another caller.
    """

    def __init__(self, each: int, activity: Activity) -> None:
        self._each, self._activity = each, activity
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, caller: str) -> None:
        """Wait until a request of a caller may be worked on; `release` ends it."""
        self._activity.note(caller)
        if self._running[caller] >= self._most(caller) or caller in self._waiting:
            await self._wait(caller)
        else:
            self._running[caller] += 1

    def release(self, caller: str) -> None:
        """End a request of a caller, and begin the next that waits."""
        self._running[caller] -= 1
        self._call_next(caller)

    def _most(self, caller: str) -> int:
        return self._each if self._activity.is_alone(caller) else max(1, self._each // 4)

    async def _wait(self, caller: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given and is not used
                self.release(caller)
            raise

    def _call_next(self, caller: str) -> None:
        """Begin requests of a caller that wait, while it has room."""
        waiting = self._waiting.get(caller, deque())
        while waiting and self._running[caller] < self._most(caller):
            place = waiting.popleft()
            if not place.done():
                self._running[caller] += 1
                place.set_result(None)
        if not waiting:
            self._waiting.pop(caller, None)
        if not self._running[caller]:
            del self._running[caller]
