"""Server-sent events: verdicts for the listeners of a stream; the writer never waits for a listener."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

from unseen.errors import ServiceError

BACKLOG = 256  # messages a slow listener may fall behind before some are dropped
KEEPALIVE = 5.0  # seconds without a message after which a comment shows that the connection is open


class EventHub:
    """The listeners of every stream."""

    def __init__(self, listeners: int) -> None:
        self._most = listeners
        self._listeners: dict[str, set[asyncio.Queue[str | None]]] = defaultdict(set)
        self._closed = False

    def has_listeners(self, stream: str) -> bool:
        """Return whether anyone listens to a stream."""
        return bool(self._listeners.get(stream))

    def publish(self, stream: str, number: int, data: str) -> None:
        """Hand a message to every listener; one that is too far behind loses its oldest."""
        message = f"id: {number}\nevent: verdicts\ndata: {data}\n\n"
        for queue in self._listeners.get(stream, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)

    def close(self) -> None:
        """End every listener's connection."""
        self._closed = True
        for stream in list(self._listeners):
            self.end(stream)

    def end(self, stream: str) -> None:
        """End the connections of those who listen to a stream."""
        for queue in self._listeners.get(stream, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def listen(self, stream: str, may_listen: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Return the messages of a stream from now on as server-sent events, while the caller may have them."""
        if len(self._listeners[stream]) >= self._most:
            raise ServiceError(429, f"expected at most {self._most} listeners, got one more; close one")
        return self._messages(stream, may_listen)

    async def _messages(self, stream: str, may_listen: Callable[[], bool]) -> AsyncIterator[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue(BACKLOG)
        self._listeners[stream].add(queue)  # not before: of a caller that has gone, this is never run
        try:
            yield "retry: 2000\n\n"
            while not self._closed:
                message = await self._next(queue)
                if message is None or not may_listen():
                    return
                yield message
        finally:
            self._listeners[stream].discard(queue)
            if not self._listeners[stream]:
                del self._listeners[stream]

    async def _next(self, queue: asyncio.Queue[str | None]) -> str | None:
        try:
            return await asyncio.wait_for(queue.get(), KEEPALIVE)
        except TimeoutError:
            return ": still here\n\n"
