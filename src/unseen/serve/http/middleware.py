"""What runs before every route: counting, security, and limits on the request body."""

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.errors import ServiceError
from unseen.serve.http.auth import is_loopback
from unseen.serve.http.errors import error_response
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import Limits

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class HTTPMiddleware:
    """Middleware of HTTP requests; startup and shutdown pass through."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await (self.serve if scope["type"] == "http" else self.app)(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        raise NotImplementedError


class MetricsMiddleware(HTTPMiddleware):
    """Count every request with its route, status and time."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        super().__init__(app)
        self.metrics = metrics

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, status, time.perf_counter() - started)


class SecurityMiddleware(HTTPMiddleware):
    """Add security headers to every response; without keys, refuse calls that another web site makes."""

    def __init__(self, app: ASGIApp, needs_key: Callable[[], bool]) -> None:
        super().__init__(app)
        self.needs_key = needs_key

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            await send(message)

        app = self.app if self.needs_key() or is_same_origin(Request(scope)) else error_response(_cross_site())
        await app(scope, receive, send_with_headers)


class BodyLimitMiddleware(HTTPMiddleware):
    """Refuse a request body that is too large or comes too slowly, before anything reads it whole."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self.limits = limits

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        deadline, size, is_whole = time.monotonic() + self.limits.body_seconds, 0, False

        async def limited() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()
            try:
                async with asyncio.timeout(max(0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError as error:
                raise ServiceError(
                    408, f"expected the request within {self.limits.body_seconds:g} s, got part of it; send it faster"
                ) from error
            size += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            check_size(size, self.limits)
            return message

        return limited


def check_size(size: int, limits: Limits) -> None:
    """Refuse a body of too many bytes."""
    if size > limits.body:
        raise ServiceError(413, f"expected at most {limits.body:,} bytes, got more; send smaller batches")


def is_same_origin(request: Request) -> bool:
    """Return whether a call names this machine as its host and comes from no other site's page."""
    host = urlsplit(f"//{request.headers.get('host', '')}")
    origin = request.headers.get("origin")
    try:
        is_own = is_loopback(host.hostname or "")
    except ValueError:
        is_own = False
    return is_own and (origin is None or urlsplit(origin).netloc == host.netloc)


def _cross_site() -> ServiceError:
    return ServiceError(403, "expected a call from this machine, got one on behalf of another site; use an API key")
