"""What runs before every route: counting, security, and limits on the request body."""

import asyncio
import itertools
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from unseen.errors import ServiceError
from unseen.serve.http.auth import KEY, NEEDS_KEY, ApiKey, header, is_loopback
from unseen.serve.http.errors import error_response, on_unexpected_error
from unseen.serve.http.log import ACCESS, AUDIT, RequestLog
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import EVERYONE, Limits
from unseen.serve.work.caller_limiter import Activity, CallerLimiter
from unseen.serve.work.fair_pool import RateLimiter
from unseen.serve.work.shares import Shares

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


FORWARDED = (b"forwarded", b"via", b"x-forwarded", b"x-real-ip")  # how the headers begin that a proxy adds
HEALTH = frozenset({"/healthz", "/readyz"})
CODE_HEADER = b"x-error-code"
REFUSAL = 0.5  # seconds after which a caller over its rate is told so
PROCESS, NUMBERS = secrets.token_hex(4), itertools.count()  # of which ids are made
REQUEST_ID = re.compile(rb"[\w.-]{1,64}")
HELD_BY = "unseen.held_by"  # where a request's scope has the task that holds its body after it was answered
STATUS = "unseen.status"  # where a request's scope has the status of its answer
SIZE = "unseen.size"  # and the bytes of its body
REFUSED_SECONDS, REFUSED_RATE = 0.05, 16 << 20  # for which a refused request counts as worked on; bytes a second of it
OWNER = "unseen.owner"  # where a request's scope says who asks; "" for a stranger


class HTTPMiddleware:
    """Middleware of HTTP requests; startup and shutdown pass through."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        return (self.serve if scope["type"] == "http" else self.app)(scope, receive, send)

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one HTTP request."""
        raise NotImplementedError


class RecordMiddleware(HTTPMiddleware):
    """Give every request an id and its response security headers; count it with its route, status and time, log it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: RequestLog) -> None:
        super().__init__(app)
        self.metrics, self.log = metrics, log

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, code, id = time.perf_counter(), 500, "", request_id(scope)

        async def send_and_note(message: Message) -> None:
            nonlocal status, code
            if message["type"] == "http.response.start":
                status = scope[STATUS] = message["status"]
                headers = [*message.get("headers", ()), *SECURITY_HEADERS, (b"x-request-id", id.encode())]
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
        if key and (is_change or status == 403):  # not of strangers, who would fill it
            self.log.write(AUDIT, **fields)


def request_id(scope: Scope) -> str:
    """The caller's X-Request-Id, or an id of ours where there is none that is short and plain."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"{PROCESS}{next(NUMBERS):08x}"


class OriginMiddleware(HTTPMiddleware):
    """Refuse calls that another web site makes, where no key is needed."""

    def __init__(self, app: ASGIApp, needs_key: Callable[[], bool]) -> None:
        super().__init__(app)
        self.needs_key = needs_key

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        needs_key = scope[NEEDS_KEY] = self.needs_key()
        app = self.app if needs_key or is_same_origin(scope) else error_response(cross_site())
        return app(scope, receive, send)


class DefectMiddleware(HTTPMiddleware):
    """Answer a defect of ours with 500 inside the other middleware, which counts it, logs it and adds headers."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            response = await on_unexpected_error(Request(scope), error)
            await response(scope, receive, send)


class HeadMiddleware(HTTPMiddleware):
    """Answer HEAD as GET without its body; a response without end is ended after its header."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] == "HEAD":
            await self._serve_head(scope, send)
        else:
            await self.app(scope, receive, send)

    async def _serve_head(self, scope: Scope, send: Send) -> None:
        parts: Iterator[Message] = iter([{"type": "http.request", "body": b"", "more_body": False}])
        answered = asyncio.Event()

        async def receive_end() -> Message:
            if (part := next(parts, None)) is not None:
                return part
            await answered.wait()  # who sends a file stops when the caller has gone, whatever it has sent
            return {"type": "http.disconnect"}

        async def send_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self.app({**scope, "method": "GET"}, receive_end, send_header)


class AdmissionMiddleware(HTTPMiddleware):
    """Limit the requests of one caller that are being answered, and leave some room for the operator and for health."""

    def __init__(
        self, app: ASGIApp, limits: Limits, key_of: Callable[[Scope], ApiKey | None], activity: Activity
    ) -> None:
        super().__init__(app)
        self.key_of, self.reserved, self.activity = key_of, limits.reserved, activity
        self.reads = RateLimiter(limits.reads, "requests that read", "reads")
        self.health = RateLimiter(limits.reads)
        self.limiters = {
            True: CallerLimiter(limits.reads_at_once, activity),
            False: CallerLimiter(limits.at_once, activity),
        }
        self.requests = Shares(total=limits.connections, each=limits.requests, what="requests", code="requests")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request or one WebSocket."""
        socket = scope["type"] == "websocket"
        return (self._serve_socket if socket else super().__call__)(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket; a caller that makes them too often is refused as one that reads too often."""
        key = self.key_of(scope)
        owner = key.owner if key else ""
        try:
            self.reads.take(owner or _address(scope), 1)
        except ServiceError as error:
            with suppress(ServiceError), self.requests.held(owner, 1, reserve=self.reserved):
                await asyncio.sleep(REFUSAL * random.uniform(0.5, 1.5))
            await WebSocket(scope, receive, send).send_denial_response(error_response(error))
        else:
            await self.app(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it at once."""
        if scope["path"] in HEALTH:
            await self._slow_down_health(_address(scope))
            return await self.app(scope, receive, send)
        key = scope[KEY] = self.key_of(scope)
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
                    # refusing takes time too: who asks at once again is slowed down, and many at different times
                    await asyncio.sleep(REFUSAL * random.uniform(0.5, 1.5))
                    return await error_response(error)(scope, receive, send)
            if scope["path"].endswith("/events") or scope["path"].startswith("/v1/jobs/"):  # these only wait
                await self.app(scope, receive, send)
            else:
                limiter = self.limiters[is_read]
                await limiter.acquire(caller)
                try:
                    await self.app(scope, receive, send)
                finally:
                    if is_read:
                        limiter.release(caller)
                    else:
                        self._end_change(caller, scope)
        finally:
            self.requests.give_back(owner, 1)

    def _end_change(self, caller: str, scope: Scope) -> None:
        """End a request that does not read. While others are active, one that was refused keeps its place for as long
        as its size says: a caller whose requests are never computed would otherwise fill the loop with them."""
        limiter = self.limiters[False]
        if scope.get(STATUS, 200) < 400 or self.activity.is_alone(caller):
            limiter.release(caller)
        else:
            seconds = REFUSED_SECONDS + scope.get(SIZE, 0) / REFUSED_RATE
            asyncio.get_running_loop().call_later(seconds, limiter.release, caller)

    async def _slow_down_health(self, address: str) -> None:
        """Let a caller that asks after our health too often wait; it is never refused."""
        try:
            self.health.take(address, 1)
        except ServiceError:
            await asyncio.sleep(REFUSAL * random.uniform(0.5, 1.5))


def _address(scope: Scope) -> str:
    """Where a stranger calls from, as a name that no owner has."""
    return f"@{scope['client'][0] if scope.get('client') else ''}"


class BodyLimitMiddleware(HTTPMiddleware):
    """Refuse a request body that is too large, comes too slowly, or is too much beside those being answered."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self.limits = limits
        self.bytes = Shares(total=limits.buffered, each=limits.buffered_each, what="bytes of requests", code="bytes")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request with a limited body, whose bytes count until nobody holds them."""
        owner = scope.get(OWNER, "")
        body = LimitedBody(receive, self.limits, partial(self.bytes.take, owner))
        try:
            check_size(claimed_size(scope), self.limits)
        except ServiceError as error:
            return await error_response(error)(scope, receive, send)
        try:
            await self.app(scope, body, send)
        finally:
            scope[SIZE] = body.size
            task: asyncio.Task[object] | None = scope.get(HELD_BY)
            if task is None or task.done():
                self.bytes.give_back(owner, body.size)
            else:
                task.add_done_callback(lambda _: self.bytes.give_back(owner, body.size))


class LimitedBody:
    """The body of one request, within its limits."""

    def __init__(self, receive: Receive, limits: Limits, take: Callable[[int], None]) -> None:
        self.receive, self.limits, self.take = receive, limits, take
        self.deadline = time.monotonic() + limits.body_seconds
        self.size, self.is_whole = 0, False

    async def __call__(self) -> Message:
        """The next part."""
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
    """The length of a body by its header, 0 where that does not say."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


def check_size(size: int, limits: Limits) -> None:
    """Refuse a body of too many bytes."""
    if size > limits.body:
        raise ServiceError(413, f"expected at most {limits.body:,} bytes, got more; send smaller batches", "body")


def is_same_origin(scope: Scope) -> bool:
    """Whether a call names this machine as its host, comes from no other site's page and through no proxy."""
    if any(name.startswith(FORWARDED) for name, _ in scope["headers"]):
        return False
    return _is_own(header(scope, b"host") or "", header(scope, b"origin"))


@lru_cache(64)
def _is_own(host: str, origin: str | None) -> bool:
    try:
        own = urlsplit(f"//{host}")
        return is_loopback(own.hostname or "") and (origin is None or urlsplit(origin).netloc == own.netloc)
    except ValueError:
        return False


def cross_site() -> ServiceError:
    """The error for a call that another web site, or a proxy, makes where no key is needed."""
    return ServiceError(
        403, "expected a call from this machine, got one on behalf of another; use an API key", "origin"
    )
