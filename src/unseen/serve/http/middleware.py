"""What runs before every route: counting, security, and limits on the request body."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.errors import ServiceError
from unseen.serve.http.auth import ApiKey, is_loopback
from unseen.serve.http.errors import error_response
from unseen.serve.http.log import ACCESS, AUDIT, RequestLog
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import EVERYONE, Limits
from unseen.serve.work.fair_pool import RateLimiter
from unseen.serve.work.shares import Shares
from unseen.serve.work.turns import Activity, Turns

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


FORWARDED = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
HEALTH = frozenset({"/healthz", "/readyz"})
CODE_HEADER = b"x-error-code"
REFUSAL = 0.5  # seconds after which a caller over its rate is told so
REQUEST_ID = re.compile(rb"[\w.-]{1,64}")
KEY = "unseen.key"  # where a request's scope has the key it came with; None for a stranger
OWNER = "unseen.owner"  # where a request's scope says who asks; "" for a stranger


class HTTPMiddleware:
    """Middleware of HTTP requests; startup and shutdown pass through."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        return (self.serve if scope["type"] == "http" else self.app)(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        raise NotImplementedError


class RecordMiddleware(HTTPMiddleware):
    """Give every request an id, count it with its route, status and time, and log it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: RequestLog) -> None:
        super().__init__(app)
        self.metrics, self.log = metrics, log

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, code, id = time.perf_counter(), 500, "", request_id(scope)

        async def send_and_note(message: Message) -> None:
            nonlocal status, code
            if message["type"] == "http.response.start":
                status, headers = message["status"], [*message.get("headers", ()), (b"x-request-id", id.encode())]
                if status >= 400:
                    code = next((value.decode() for name, value in headers if name == CODE_HEADER), "")
                message["headers"] = headers
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            seconds, route = time.perf_counter() - started, getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, status, seconds, code)
            if self.log.folder:
                self._write(scope, id, route, status, seconds, code)

    def _write(self, scope: Scope, id: str, route: str, status: int, seconds: float, code: str) -> None:
        key: ApiKey | None = scope.get(KEY)
        fields = {"request": id, "method": scope["method"], "path": scope["path"][:256], "status": status}
        fields |= {"ms": round(1000 * seconds, 2), "owner": key.owner if key else None, "key": key.id if key else None}
        fields |= {"address": scope["client"][0] if scope.get("client") else None, "code": code or None}
        self.log.write(ACCESS, **fields)
        is_change = scope["method"] not in ("GET", "HEAD") and not route.endswith(("/observe", "/score"))
        if is_change or status in (401, 403):
            self.log.write(AUDIT, **fields)


def request_id(scope: Scope) -> str:
    """Return the caller's X-Request-Id, or an id of ours where there is none that is short and plain."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)


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

        app = self.app if self.needs_key() or is_same_origin(Request(scope)) else error_response(cross_site())
        await app(scope, receive, send_with_headers)


class HeadMiddleware(HTTPMiddleware):
    """Answer HEAD as GET without its body, which uvicorn leaves out; a response without end is ended."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] == "HEAD":
            scope, receive = {**scope, "method": "GET"}, _disconnected
        await self.app(scope, receive, send)


async def _disconnected() -> Message:
    return {"type": "http.disconnect"}


class AdmissionMiddleware(HTTPMiddleware):
    """Limit the requests of one caller that are being answered, and leave some room for the operator and for health."""

    def __init__(self, app: ASGIApp, limits: Limits, key_of: Callable[[Request], ApiKey | None]) -> None:
        super().__init__(app)
        self.key_of, self.reserved = key_of, limits.reserved
        self.reads = RateLimiter(limits.reads, "requests that read", "reads")
        activity = Activity()
        self.turns = {True: Turns(limits.reads_at_once, activity), False: Turns(limits.at_once, activity)}
        self.requests = Shares(total=limits.connections, each=limits.requests, what="requests", code="requests")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it at once."""
        if scope["path"] in HEALTH:
            return await self.app(scope, receive, send)
        key = scope[KEY] = self.key_of(Request(scope))
        owner = scope[OWNER] = key.owner if key else ""
        caller, is_read = owner or _address(scope), scope["method"] in ("GET", "HEAD")
        try:
            self.requests.take(owner, 1, reserve=0 if owner == EVERYONE else self.reserved)
        except ServiceError as error:
            return await error_response(error)(scope, receive, send)
        try:
            if is_read or not owner:
                try:
                    self.reads.take(caller, 1)
                except ServiceError as error:
                    await asyncio.sleep(REFUSAL)  # refusing takes time too: who asks at once again is slowed down
                    return await error_response(error)(scope, receive, send)
            if scope["path"].endswith("/events") or scope["path"].startswith("/v1/jobs/"):  # these only wait
                await self.app(scope, receive, send)
            else:
                async with self.turns[is_read].taken(caller):
                    await self.app(scope, receive, send)
        finally:
            self.requests.give_back(owner, 1)


def _address(scope: Scope) -> str:
    """Return where a stranger calls from, as a name that no owner has."""
    return f"@{scope['client'][0] if scope.get('client') else ''}"


class BodyLimitMiddleware(HTTPMiddleware):
    """Refuse a request body that is too large, comes too slowly, or is too much beside those being answered."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self.limits = limits
        self.bytes = Shares(total=limits.buffered, each=limits.buffered_each, what="bytes of requests", code="bytes")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request with a limited body, whose bytes count until it is answered."""
        body = LimitedBody(receive, self.limits, partial(self.bytes.take, scope.get(OWNER, "")))
        try:
            check_size(claimed_size(scope), self.limits)
        except ServiceError as error:
            return await error_response(error)(scope, receive, send)
        try:
            await self.app(scope, body, send)
        finally:
            self.bytes.give_back(scope.get(OWNER, ""), body.size)


class LimitedBody:
    """The body of one request, within its limits."""

    def __init__(self, receive: Receive, limits: Limits, take: Callable[[int], None]) -> None:
        self.receive, self.limits, self.take = receive, limits, take
        self.deadline = time.monotonic() + limits.body_seconds
        self.size, self.is_whole = 0, False

    async def __call__(self) -> Message:
        """Return the next part."""
        if self.is_whole:
            return await self.receive()
        try:
            async with asyncio.timeout(max(0, self.deadline - time.monotonic())):
                message = await self.receive()
        except TimeoutError as error:
            raise ServiceError(
                408, f"expected the request within {self.limits.body_seconds:g} s, got part of it; send it faster"
            ) from error
        size = len(message.get("body", b""))
        check_size(self.size + size, self.limits)
        self.take(size)
        self.size += size
        self.is_whole = not message.get("more_body", False)
        return message


def claimed_size(scope: Scope) -> int:
    """Return the length of a body by its header, 0 where that does not say."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


def check_size(size: int, limits: Limits) -> None:
    """Refuse a body of too many bytes."""
    if size > limits.body:
        raise ServiceError(413, f"expected at most {limits.body:,} bytes, got more; send smaller batches", "body")


def is_same_origin(request: HTTPConnection) -> bool:
    """Return whether a call names this machine as its host, comes from no other site's page and through no proxy."""
    if any(name in FORWARDED for name, _ in request.scope["headers"]):
        return False
    try:
        host, origin = urlsplit(f"//{request.headers.get('host', '')}"), request.headers.get("origin")
        is_own = is_loopback(host.hostname or "")
        return is_own and (origin is None or urlsplit(origin).netloc == host.netloc)
    except ValueError:
        return False


def cross_site() -> ServiceError:
    """Return the error for a call that another web site, or a proxy, makes where no key is needed."""
    return ServiceError(
        403, "expected a call from this machine, got one on behalf of another; use an API key", "origin"
    )
