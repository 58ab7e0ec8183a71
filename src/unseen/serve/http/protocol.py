"""HTTP connections with limits that uvicorn does not set: bytes and seconds of a header, and how many there are."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from unseen.serve.http.auth import is_loopback
from unseen.serve.settings import Limits

T = TypeVar("T")
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


class OpenConnections(Generic[T]):
    """Connections of which `most` may be open; what is done for one does not depend on how many there are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[T] = set()
        self._idle: dict[T, None] = {}  # in the order they became so

    def add(self, connection: T) -> T | None:
        """Take a connection, which is idle; return the one that must go for it: that was idle longest, if any."""
        self._open.add(connection)
        self._idle[connection] = None
        return next(iter(self._idle)) if len(self._open) > self._most else None

    def mark(self, connection: T, *, is_idle: bool) -> None:
        """Note that a connection has become idle or busy."""
        self._idle.pop(connection, None)
        if is_idle and connection in self._open:
            self._idle[connection] = None

    def remove(self, connection: T) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def __len__(self) -> int:
        return len(self._open)


class ConnectionRoom:
    """All connections of a service, and those from each address other than this machine's, where a proxy calls from."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._all = limits, OpenConnections["LimitedProtocol"](limits.connections)
        self._of: dict[str, OpenConnections[LimitedProtocol]] = {}

    def add(self, connection: LimitedProtocol) -> None:
        """Take a connection; where there are too many, end the one that was idle longest."""
        address = connection.client[0] if connection.client else ""
        if address and not is_loopback(address):
            self._of.setdefault(address, OpenConnections(self._limits.address))
        for group in self._groups(connection):
            if (gone := group.add(connection)) is not None:
                self.remove(gone)
                gone.transport.abort()

    def mark(self, connection: LimitedProtocol) -> None:
        """Note whether a connection is idle."""
        for group in self._groups(connection):
            group.mark(connection, is_idle=connection.is_idle)

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection."""
        for group in self._groups(connection):
            group.remove(connection)
        if connection.client and not self._of.get(connection.client[0], True):
            del self._of[connection.client[0]]

    def _groups(self, connection: LimitedProtocol) -> list[OpenConnections[LimitedProtocol]]:
        own = self._of.get(connection.client[0]) if connection.client else None
        return [self._all] if own is None else [own, self._all]


class LimitedProtocol(HttpToolsProtocol):
    """One connection. When there are too many, the one that has been idle longest makes room for a new one."""

    def __init__(self, *arguments: Any, limits: Limits, room: ConnectionRoom, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits, self.room = limits, room
        self._unparsed = 0  # bytes since a header was complete or a part of a body came
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or end one for it."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._wait_for_header()
        self.room.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_timer()
        self.room.remove(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand a connection over; an owner's sockets are counted elsewhere.

        One whose header is not taken, because it announces a body, would be waited for without end, and not counted.
        """
        self.room.remove(self)
        super().handle_websocket_upgrade()
        if not getattr(self.transport.get_protocol(), "handshake_initiated", True):
            self.send_400_response("expected a WebSocket handshake without a body")

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
        self.room.mark(self)

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
        super().on_response_complete()
        self.room.mark(self)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_header(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
