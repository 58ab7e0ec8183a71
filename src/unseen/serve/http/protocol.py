"""HTTP connections with limits that uvicorn does not set: bytes and seconds of a header, and how many there are."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from unseen.serve.http.auth import is_loopback
from unseen.serve.settings import Limits

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class JoinedWrites:
    """A transport that sends what is written in one turn of the loop, such as a header and its body, by one call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def __getattr__(self, name: str) -> Any:
        self._flush()  # whatever else is done to a transport comes after what was written
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._transport.is_closing():  # the caller may have gone meanwhile; uvloop raises then
                self._transport.write(b"".join(parts))


class LimitedProtocol(HttpToolsProtocol):
    """One connection. When there are too many, the one that has been idle longest makes room for a new one.

    Connections from one address are limited too, except from this machine: that is where a proxy calls from.
    """

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = limits
        self.idle_since = self.loop.time()
        self._unparsed = 0  # bytes since a header was complete or a part of a body came
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or end one for it."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._wait_for_header()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and end a connection whose header is too large."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self.limits.headers and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()
        elif self._unparsed and self._timer is None:
            self._wait_for_header()

    def on_headers_complete(self) -> None:
        """Start a request."""
        self._unparsed = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request's body."""
        self._unparsed = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Be idle until the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_header(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> None:
        open_ones = [one for one in self.connections if isinstance(one, LimitedProtocol) and one.is_open]
        if self.client and not is_loopback(self.client[0]):
            _end_one([one for one in open_ones if one.client and one.client[0] == self.client[0]], self.limits.address)
        _end_one(open_ones, self.limits.connections)

    @property
    def is_open(self) -> bool:
        """Return whether the connection has not been ended by us."""
        return not self.transport.is_closing()


def _end_one(connections: list[LimitedProtocol], most: int) -> None:
    """End the connection that was idle longest where there are too many; the newest is always idle."""
    if len(connections) > most:
        min((one for one in connections if one.is_idle), key=lambda one: one.idle_since).transport.abort()
