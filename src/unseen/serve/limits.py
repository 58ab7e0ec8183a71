"""What one caller may ask for, so that no caller can take the service from the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.errors import ServiceError


@dataclass(frozen=True)
class Limits:
    """Bounds of one request, one stream, one owner."""

    body: int = 64 << 20  # bytes of a request
    batch: int = 2048  # samples of a request
    pixels: int = 50_000_000  # of one image, checked before it is decoded
    queue: int = 16_384  # samples waiting for one stream
    rate: float = 0  # samples a second of one owner; 0 is no limit
    streams: int = 100  # of one owner
    names: int = 10_000  # of one label space
    listeners: int = 32  # event streams open on one stream
    patience: float = 30  # seconds a client may take to send its request


@dataclass
class Rate:
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


class Bounded:
    """Refuse a request body that is too large or comes too slowly, before anything reads it whole."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        deadline, size, whole = time.monotonic() + self.limits.patience, 0, False

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout(max(0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError as error:
                raise ServiceError(
                    408, f"expected the request within {self.limits.patience:g} s, got part of it; send it faster"
                ) from error
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > self.limits.body:
                raise ServiceError(413, f"expected at most {self.limits.body:,} bytes, got more; send smaller batches")
            return message

        await self.app(scope, bounded, send)
