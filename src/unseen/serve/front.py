"""What stands before every route: who may call from a browser, security headers, counts, and errors as JSON."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unseen.errors import ServiceError, UnseenError
from unseen.serve import payload
from unseen.serve.keys import loopback
from unseen.serve.metrics import Metrics

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

log = logging.getLogger("unseen.serve")


class Front:
    """Stand before every route: who may call from a browser, security headers, counts and times."""

    def __init__(self, app: ASGIApp, metrics: Metrics, is_open: Callable[[], bool]) -> None:
        self.app, self.metrics, self.is_open = app, metrics, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *RAW_HEADERS]
            await send(message)

        try:
            if self.is_open() and (stranger := foreign(scope)):
                await stranger(scope, receive, dressed)
            else:
                await self.app(scope, receive, dressed)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, status, time.perf_counter() - started)


def foreign(scope: Scope) -> Response | None:
    """Return a refusal for another site's page that reaches for this machine through its user's browser."""
    request = Request(scope)
    host = urlsplit(f"//{request.headers.get('host', '')}")
    origin = request.headers.get("origin")
    try:
        own = loopback(host.hostname or "")
    except ValueError:
        own = False
    if own and (origin is None or urlsplit(origin).netloc == host.netloc):
        return None
    error = ServiceError(403, "expected a call from this machine, got one on behalf of another site; use an API key")
    return refusal(error, 403)


async def refused(_: Request, error: Exception) -> Response:
    """Answer an error raised on purpose with its own sentence."""
    status = error.status if isinstance(error, ServiceError) else 422
    return refusal(error, status)


async def misread(_: Request, error: Exception) -> Response:
    """Answer a path or query that does not parse."""
    return refusal(ServiceError(422, "expected the parameters in /docs, got others; see /docs"), 422)


async def missing(_: Request, error: Exception) -> Response:
    """Answer what the router or a form parser refuses."""
    assert isinstance(error, HTTPException)
    return refusal(ServiceError(error.status_code, f"{error.detail}; see /docs"), error.status_code)


async def gone(_: Request, error: Exception) -> Response:
    """Answer a client that hung up in the middle of its request, for the counters: it will not read this."""
    return refusal(ServiceError(400, "expected a whole request, got part of it; send it again"), 400)


async def broken(_: Request, error: Exception) -> Response:
    """Answer what nobody expected, without telling a stranger why."""
    log.error("unexpected", exc_info=error)
    return refusal(ServiceError(500, "something unexpected happened; the log has it"), 500)


def refusal(error: Exception, status: int) -> Response:
    """Return an error as JSON."""
    response = payload.answered(payload.dumped({"error": type(error).__name__, "message": str(error)}), status)
    if status in (429, 503, 507):
        response.headers["retry-after"] = "1"
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def add_refusals(app: FastAPI) -> None:
    """Answer every error with JSON of one shape."""
    for kind, answer in ANSWERS.items():
        app.add_exception_handler(kind, answer)


async def answer_to(request: Request, error: Exception) -> Response:
    """Return what a caller is told of an error."""
    for kind, answer in ANSWERS.items():
        if isinstance(error, kind):
            return await answer(request, error)
    raise error


# the general comes last
ANSWERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    UnseenError: refused,
    RequestValidationError: misread,
    HTTPException: missing,
    ClientDisconnect: gone,
    Exception: broken,
}
