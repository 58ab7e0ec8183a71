"""What runs before every route: who asks, from where, how often and how much; and what is noted of the answer."""

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.errors import ServiceError
from unseen.serve.http.auth import KEY, ApiKey, header, is_loopback
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
FORWARDED = (b"forwarded", b"via", b"x-forwarded", b"x-real-ip")  # how the headers begin that a proxy adds
CODE_HEADER = b"x-error-code"
REQUEST_ID = re.compile(rb"[\w.-]{1,64}")


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
        exchange = Exchange(scope, send)
        try:
            await self._serve(scope, receive, exchange)
        except Exception as error:
            if not exchange.status:  # else it is answered and logged
                response = answer_to(error, self.service.settings.data)
                await response(scope, receive, exchange.send)
        finally:
            self._note(scope, exchange)

    async def _serve(self, scope: Scope, receive: Receive, exchange: "Exchange") -> None:
        needs_key = self.service.needs_key()
        if not needs_key:
            refuse_other_sites(scope)
        if scope["path"] in OPEN:
            return await self.app(scope, receive, exchange.send)
        key: ApiKey = self.service.key_of(scope, needed=needs_key)
        scope[KEY] = key
        if scope["method"] == "GET":
            self.reads.take(key.owner, 1)
            return await self.app(scope, receive, exchange.send)
        body = Body(receive)
        try:
            await self._receive(scope, body, key.owner)
            async with self._slots.setdefault(key.owner, asyncio.Semaphore(self.limits.at_once)):
                await self.app(scope, body.receive, exchange.send)
        finally:
            self.bytes.give_back(key.owner, body.size)

    async def _receive(self, scope: Scope, body: "Body", owner: str) -> None:
        """Take in a body within its limits: until it is there, the request holds nothing but its bytes."""
        self._check_size(int(header(scope, b"content-length") or 0))
        seconds = self.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                async for size in body.parts():
                    self._check_size(body.size + size)
                    self.bytes.take(owner, size)
                    body.size += size
        except TimeoutError as error:
            what = f"expected the request within {seconds:g} s, got part of it; send it faster"
            raise ServiceError(408, what) from error

    def _check_size(self, size: int) -> None:
        if size > self.limits.body:
            what = f"expected at most {self.limits.body:,} bytes, got more; send smaller batches"
            raise ServiceError(413, what, "body")

    def _note(self, scope: Scope, exchange: "Exchange") -> None:
        seconds, route = time.perf_counter() - exchange.begun, getattr(scope.get("route"), "path", "other")
        status = exchange.status or 499  # the caller has gone
        self.service.metrics.answered(route, status, seconds, exchange.code)
        key: ApiKey | None = scope.get(KEY)
        fields = {
            "request": exchange.id.decode(),
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
    """One request and its answer: its id, when it came, its status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.begun, self.status, self.code, self._send = time.perf_counter(), 0, "", send
        self.id = request_id(scope)
        self._headers = [*(READ_HEADERS if scope["method"] == "GET" else ANSWER_HEADERS), (b"x-request-id", self.id)]

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status >= 400:
                self.code = dict(message["headers"]).get(CODE_HEADER, b"").decode()
            message["headers"] = [*message["headers"], *self._headers]
        await self._send(message)


class Body:
    """The parts of a request's body, which a route gets one by one."""

    def __init__(self, rest: Receive) -> None:
        self.size, self.rest = 0, rest
        self._messages: deque[Message] = deque()

    async def parts(self) -> AsyncIterator[int]:
        """Take in one part after the other, and yield how large each is."""
        while not self._messages or self._messages[-1].get("more_body"):
            message = await self.rest()
            if message["type"] == "http.disconnect":
                raise ServiceError(400, "expected a whole request, got part of it; send it again")
            self._messages.append(message)
            yield len(message.get("body", b""))

    async def receive(self) -> Message:
        """The next part, others being served in between; after the last one, that the caller has gone."""
        if not self._messages:
            return await self.rest()
        await asyncio.sleep(0)
        return self._messages.popleft()


def request_id(scope: Scope) -> bytes:
    """The caller's X-Request-Id, or an id of ours where there is none that is short and plain."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode()


def refuse_other_sites(scope: Scope) -> None:
    """Where no key is needed, refuse a call on behalf of another machine, through a proxy, or of another web site.

    A browser names the site in Sec-Fetch-Site, also where it sends no Origin. A person may follow a link to the page.
    """
    if any(name.startswith(FORWARDED) for name, _ in scope["headers"]):
        raise _cross_site()
    site, is_link = header(scope, b"sec-fetch-site"), header(scope, b"sec-fetch-mode") == "navigate"
    is_other = site not in (None, "same-origin", "none") and not (is_link and scope["path"] in FILES)
    if is_other or not _is_own(header(scope, b"host") or "", header(scope, b"origin")):
        raise _cross_site()


@lru_cache(64)
def _is_own(host: str, origin: str | None) -> bool:
    try:
        own = urlsplit(f"//{host}")
        return is_loopback(own.hostname or "") and (origin is None or urlsplit(origin).netloc == own.netloc)
    except ValueError:
        return False


def _cross_site() -> ServiceError:
    return ServiceError(
        403, "expected a call from this machine, got one on behalf of another; use an API key", "origin"
    )
