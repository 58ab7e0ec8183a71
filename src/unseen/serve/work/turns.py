"""Turns between requests: so many of one caller are worked on at once, the others of that caller wait in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Let `each` requests of one caller be worked on at once.

    The loop takes what is ready in the order it came: a caller with hundreds of requests would otherwise put hundreds
    of pieces of work between two of another caller.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._free: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def taken(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn of a caller, and have it for a while."""
        free = self._free.setdefault(caller, asyncio.Semaphore(self._each))
        self._users[caller] = self._users.get(caller, 0) + 1
        try:
            async with free:
                yield
        finally:
            self._users[caller] -= 1
            if not self._users[caller]:
                del self._free[caller], self._users[caller]
