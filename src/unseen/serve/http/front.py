"""What runs before every route: who asks, from where, how often and how much; and what is noted of the answer."""

import asyncio
import re
import secrets
import time
from collections import deque
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.errors import ServiceError
from unseen.serve.http.auth import KEY, ApiKey, is_loopback
from unseen.serve.http.errors import answer_to
from unseen.serve.http.log import ACCESS, AUDIT
from unseen.serve.http.service import Service
from unseen.serve.page import FILES
from unseen.serve.work.threads import ByteQuota, RateLimiter

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ANSWER_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
READ_HEADERS = [
    *ANSWER_HEADERS,
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # of what a browser may show
OPEN = frozenset({"/healthz", "/readyz", "/openapi.json", *FILES})  # what needs no key and reads no stream
FORWARDED = ("forwarded", "via", "x-forwarded", "x-real-ip")  # how the headers begin that a proxy adds
CODE_HEADER = b"x-error-code"
REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Front:
    """The application behind what every request has to pass."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        limits = service.limits
        self.app, self.service, self.limits = app, service, limits
        self.reads = RateLimiter(limits.reads, "requests that read", "reads")
        self.bytes = ByteQuota(limits.buffered, limits.buffered_each)
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, count it and log it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        exchange = Exchange(scope, receive, send)
        try:
            await self._serve(scope, exchange)
        except Exception as error:
            if not exchange.status:  # else it is answered and logged
                response = answer_to(error, self.service.settings.data)
                await response(scope, receive, exchange.send)
        finally:
            self._note(scope, exchange)

    async def _serve(self, scope: Scope, exchange: "Exchange") -> None:
        if not self.service.needs_key:
            refuse_other_sites(scope, exchange.headers)
        if scope["path"] in OPEN:
            return await self.app(scope, exchange.rest, exchange.send)
        key = scope[KEY] = self.service.key_of(scope)
        if scope["method"] == "GET":
            self.reads.take(key.owner, 1)
            return await self.app(scope, exchange.rest, exchange.send)
        try:
            await self._take_in(scope, exchange, key.owner)
            async with self._slots.setdefault(key.owner, asyncio.Semaphore(self.limits.at_once)):
                await self.app(scope, exchange.receive, exchange.send)
        finally:
            self.bytes.give_back(key.owner, exchange.size)

    async def _take_in(self, scope: Scope, exchange: "Exchange", owner: str) -> None:
        """Take in a body within its limits: until it is there, the request holds nothing but its bytes."""
        claimed, parts, limits = int(exchange.headers.get("content-length", 0)), exchange.parts, self.limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    if max(claimed, exchange.size) > limits.body:
                        what = f"expected at most {limits.body:,} bytes, got more; send smaller batches"
                        raise ServiceError(413, what, "body")
                    if parts and not parts[-1].get("more_body"):
                        return
                    part = await exchange.rest()
                    if part["type"] == "http.disconnect":
                        raise ServiceError(400, "expected a whole request, got part of it; send it again")
                    size = len(part.get("body", b""))
                    self.bytes.take(owner, size)
                    exchange.size += size
                    parts.append(part)
        except TimeoutError as error:
            what = f"expected the request within {limits.body_seconds:g} s, got part of it; send it faster"
            raise ServiceError(408, what) from error

    def _note(self, scope: Scope, exchange: "Exchange") -> None:
        seconds, route = time.perf_counter() - exchange.begun, getattr(scope.get("route"), "path", "other")
        status = exchange.status or 499  # the caller has gone
        metrics = self.service.metrics
        metrics.requests.labels(route, status).inc()
        metrics.latency.labels(route).observe(seconds)
        if exchange.code:
            metrics.refused.labels(exchange.code).inc()
        key: ApiKey | None = scope.get(KEY)
        fields = {
            "request": exchange.id,
            "method": scope["method"],
            "path": scope["path"][:256],
            "status": status,
            "ms": round(1000 * seconds, 2),
            "owner": key and key.owner,
            "key": key and key.id,
            "address": scope["client"][0] if scope.get("client") else None,
            "code": exchange.code or None,
        }
        self.service.log.write(ACCESS, **fields)
        is_change = scope["method"] != "GET" and not route.endswith(("/observe", "/score"))
        if key and (is_change or status == 403):  # not of strangers, who would fill it
            self.service.log.write(AUDIT, **fields)


class Exchange:
    """One request and its answer: when it came, the parts of its body that were taken in, its status.

    Its id is the caller's X-Request-Id, or one of ours where there is none that is short and plain.
    """

    def __init__(self, scope: Scope, rest: Receive, send: Send) -> None:
        self.begun, self.status, self.code, self.rest, self._send = time.perf_counter(), 0, "", rest, send
        self.headers, self.size, self.parts = Headers(scope=scope), 0, deque[Message]()
        asked = self.headers.get("x-request-id", "")
        self.id = asked if REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)
        added = READ_HEADERS if scope["method"] == "GET" else ANSWER_HEADERS
        self._added = [*added, (b"x-request-id", self.id.encode())]

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status >= 400:
                self.code = dict(message["headers"]).get(CODE_HEADER, b"").decode()
            message["headers"] = [*message["headers"], *self._added]
        await self._send(message)

    async def receive(self) -> Message:
        """The next part of the body, others being served in between; after the last one, that the caller has gone."""
        if not self.parts:
            return await self.rest()
        await asyncio.sleep(0)
        return self.parts.popleft()


def refuse_other_sites(scope: Scope, headers: Headers) -> None:
    """Where no key is needed, refuse a call on behalf of another machine, through a proxy, or of another web site.

    A browser names the site in Sec-Fetch-Site, also where it sends no Origin. A person may follow a link to the page.
    """
    is_proxied = any(name.startswith(FORWARDED) for name in headers)
    site, is_link = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode") == "navigate"
    is_other = site not in (None, "same-origin", "none") and not (is_link and scope["path"] in FILES)
    if is_proxied or is_other or not _is_own(headers.get("host", ""), headers.get("origin")):
        what = "expected a call from this machine, got one on behalf of another; use an API key"
        raise ServiceError(403, what, "origin")


@lru_cache(64)
def _is_own(host: str, origin: str | None) -> bool:
    try:
        own = urlsplit(f"//{host}")
        return is_loopback(own.hostname or "") and (origin is None or urlsplit(origin).netloc == own.netloc)
    except ValueError:
        return False
