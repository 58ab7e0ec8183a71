"""Server-sent events: a listener is told what is kept of a stream's verdicts after the last that it heard of.

Nothing waits for it: while it is slow, newer verdicts take the place of older ones, and it is told what it missed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from json import dumps
from typing import NamedTuple

from unseen.errors import ServiceError


class VerdictEvent(NamedTuple):
    """The verdicts of consecutive samples, from number `first` to `last`, as JSON."""

    first: int
    last: int
    data: str

    def text(self, after: int) -> str:
        """The event as it is sent to a listener that heard of samples up to `after`; its id is the last number."""
        missed = {"first": after + 1, "last": self.first - 1}
        told = f"event: missed\ndata: {dumps(missed)}\n\n" if self.first > after + 1 else ""
        return f"{told}id: {self.last}\nevent: verdicts\ndata: {self.data}\n\n"


Kept = Callable[[int], Awaitable[Sequence[VerdictEvent]]]  # what is kept of the samples after one


def listen(
    listeners: set[asyncio.Event], most: int, after: int, kept: Kept, may_listen: Callable[[], bool]
) -> AsyncIterator[str]:
    """The events of a stream after a sample as text, for one more of its listeners, while the caller may have them."""
    if len(listeners) >= most:
        raise ServiceError(429, f"expected at most {most} listeners, got one more; close one", "listeners")
    return _messages(listeners, after, kept, may_listen)


async def _messages(
    listeners: set[asyncio.Event], after: int, kept: Kept, may_listen: Callable[[], bool]
) -> AsyncIterator[str]:
    listener, quiet = asyncio.Event(), 0
    listeners.add(listener)  # not before: of a caller that has gone, this is never run
    try:
        yield "retry: 2000\n\n"
        while may_listen():
            listener.clear()
            events = await kept(after)
            for event in events:
                yield event.text(after)
                after = event.last
            if events:  # what is observed meanwhile comes together
                await asyncio.sleep(0.05)
            quiet = 0 if events or await _is_set(listener) else quiet + 1
            if quiet >= 5:  # seconds
                yield ": still here\n\n"
                quiet = 0
    finally:
        listeners.discard(listener)


async def _is_set(listener: asyncio.Event) -> bool:
    """Whether there is something new for a listener, before it is time to look at its key again."""
    try:
        return await asyncio.wait_for(listener.wait(), 1)
    except TimeoutError:
        return False
