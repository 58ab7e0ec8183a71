"""Server-sent events: verdicts for the listeners of a stream; the writer never waits for a listener."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from json import dumps
from typing import NamedTuple

from unseen.errors import ServiceError

BACKLOG, BYTES = 256, 4 << 20  # messages, and their bytes, that a slow listener may fall behind; then some are dropped
CHECK = 1.0  # seconds after which a listener's key is looked at again
KEEPALIVE = 5  # such checks without a message, after which a comment shows that the connection is open


class VerdictEvent(NamedTuple):
    """The verdicts of consecutive samples, from number `first` to `last`, as JSON."""

    first: int
    last: int
    data: str

    def text(self) -> str:
        """The event as it is sent; its id is the number of the last sample."""
        return f"id: {self.last}\nevent: verdicts\ndata: {self.data}\n\n"


class Backlog(asyncio.Queue[VerdictEvent | None]):
    """What waits for one listener; None ends it."""

    size = 0  # bytes

    def add(self, event: VerdictEvent | None) -> None:
        """Put an event behind the others; what is too much loses its oldest."""
        while self.full() or (self.size > BYTES and not self.empty()):
            self.get_nowait()
        self.put_nowait(event)

    def _put(self, item: VerdictEvent | None) -> None:
        self.size += len(item.data) if item else 0
        super()._put(item)

    def _get(self) -> VerdictEvent | None:
        item = super()._get()
        self.size -= len(item.data) if item else 0
        return item


Past = Callable[[int], Awaitable[Sequence[VerdictEvent]]]  # what is kept of the samples after one


class EventHub:
    """The listeners of every stream."""

    def __init__(self, listeners: int) -> None:
        self._most = listeners
        self._listeners: dict[str, set[Backlog]] = defaultdict(set)
        self.is_closed = False

    def has_listeners(self, stream: str) -> bool:
        """Whether anyone listens to a stream."""
        return bool(self._listeners.get(stream))

    def publish(self, stream: str, event: VerdictEvent) -> None:
        """Hand an event to every listener; one that is too far behind loses its oldest."""
        for queue in self._listeners.get(stream, ()):
            queue.add(event)

    def close(self) -> None:
        """End every listener's connection."""
        self.is_closed = True
        for stream in list(self._listeners):
            self.end(stream)

    def end(self, stream: str) -> None:
        """End the connections of those who listen to a stream."""
        for queue in self._listeners.get(stream, ()):
            queue.add(None)

    def listen(
        self,
        stream: str,
        may_listen: Callable[[], bool] = lambda: True,
        after: int | None = None,
        past: Past | None = None,
    ) -> AsyncIterator[str]:
        """The events of a stream as text while the caller may have them: those `after` a sample, or from now on.

        Where a sample's verdict is no longer kept, or was dropped because the listener was slow, an event `missed` has
        the numbers of the first and the last of them.
        """
        if len(self._listeners[stream]) >= self._most:
            raise ServiceError(429, f"expected at most {self._most} listeners, got one more; close one", "listeners")
        return self._messages(stream, may_listen, after, past)

    async def _messages(
        self, stream: str, may_listen: Callable[[], bool], after: int | None, past: Past | None
    ) -> AsyncIterator[str]:
        queue = Backlog(BACKLOG)
        self._listeners[stream].add(queue)  # not before: of a caller that has gone, this is never run
        try:
            yield "retry: 2000\n\n"
            kept = await past(after) if past and after is not None else ()
            async for event in self._following(queue, kept, may_listen):
                if event is None:
                    yield ": still here\n\n"
                elif after is None or event.last > after:  # else it was among what is kept
                    yield _missed(after, event) + event.text()
                    after = event.last
        finally:
            self._listeners[stream].discard(queue)
            if not self._listeners[stream]:
                del self._listeners[stream]

    async def _following(
        self, queue: Backlog, kept: Sequence[VerdictEvent], may_listen: Callable[[], bool]
    ) -> AsyncIterator[VerdictEvent | None]:
        """Yield what is kept, then what comes; None shows that the connection is open."""
        for past in kept:
            yield past
        quiet = 0
        while not self.is_closed:
            event: VerdictEvent | None
            try:
                event = await asyncio.wait_for(queue.get(), CHECK)
            except TimeoutError:
                quiet += 1
                if not may_listen():
                    return
                if quiet % KEEPALIVE == 0:
                    yield None
                continue
            if event is None or not may_listen():
                return
            quiet = 0
            yield event


def last_event(header: str | None, newest: int) -> int | None:
    """The number of the last sample a listener has had, None for none; it cannot be later than the `newest`.

    A listener may have heard of more samples than there are: the service may have been restored from a backup.
    """
    try:
        return None if header is None else max(-1, min(int(header), newest))
    except ValueError:
        raise ServiceError(
            422, "expected a sample's number as Last-Event-ID, got something else; leave it out", "parameters"
        ) from None


def _missed(after: int | None, event: VerdictEvent) -> str:
    if after is None or event.first <= after + 1:
        return ""
    return f"event: missed\ndata: {dumps({'first': after + 1, 'last': event.first - 1})}\n\n"
