"""Tell listeners of a stream what was said of each sample, without ever waiting for them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from unseen.errors import ServiceError

BACKLOG = 256  # messages a slow listener may fall behind before some are dropped
QUIET = 15.0  # seconds after which a comment shows that the line is open


class Hub:
    """Who listens to which stream."""

    def __init__(self, listeners: int) -> None:
        self._most = listeners
        self._lines: dict[str, set[asyncio.Queue[str | None]]] = defaultdict(set)
        self._closed = False

    def heard(self, stream: str) -> bool:
        """Say whether anyone listens."""
        return bool(self._lines.get(stream))

    def publish(self, stream: str, number: int, data: str) -> None:
        """Hand a message to every listener; one that is too far behind loses its oldest."""
        message = f"id: {number}\nevent: verdicts\ndata: {data}\n\n"
        for line in self._lines.get(stream, ()):
            if line.full():
                line.get_nowait()
            line.put_nowait(message)

    def close(self) -> None:
        """End every listener's line."""
        self._closed = True
        for lines in self._lines.values():
            for line in lines:
                if line.full():
                    line.get_nowait()
                line.put_nowait(None)

    def listen(self, stream: str) -> AsyncIterator[str]:
        """Return the messages of a stream from now on, as server-sent events."""
        if len(self._lines[stream]) >= self._most:
            raise ServiceError(429, f"expected at most {self._most} listeners, got one more; close one")
        line: asyncio.Queue[str | None] = asyncio.Queue(BACKLOG)
        self._lines[stream].add(line)
        return self._messages(stream, line)

    async def _messages(self, stream: str, line: asyncio.Queue[str | None]) -> AsyncIterator[str]:
        try:
            yield "retry: 2000\n\n"
            while not self._closed:
                try:
                    message = await asyncio.wait_for(line.get(), QUIET)
                except TimeoutError:
                    message = ": still here\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._lines[stream].discard(line)
