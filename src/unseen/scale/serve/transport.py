"""Requests and responses as they travel between processes, and actors that answer them with an ASGI app."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from unseen.errors import UnseenError
from unseen.scale import cluster
from unseen.serve.http.app import create_app
from unseen.serve.http.errors import error_response
from unseen.serve.http.service import Service

ENCODED = "unseen.encoded"  # where a request's scope carries its encoded images
Headers = list[tuple[bytes, bytes]]


class RequestMessage(NamedTuple):
    """A request as it travels between processes."""

    method: str
    path: str
    query: bytes = b""
    headers: Headers = []  # noqa: RUF012 (never written to)
    body: bytes = b""

    @classmethod
    async def of(cls, request: Request) -> RequestMessage:
        """A whole request."""
        url = request.url
        return cls(request.method, url.path, url.query.encode(), request.headers.raw, await request.body())

    @property
    def scope(self) -> dict[str, Any]:
        """The request as ASGI describes it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": self.headers,
            "client": None,
            "server": None,
        }

    def without_body(self) -> RequestMessage:
        """The request without its body and what describes it."""
        headers = [(name, value) for name, value in self.headers if not name.startswith((b"content-", b"transfer-"))]
        return self._replace(headers=headers, body=b"")

    def repeatable(self) -> RequestMessage:
        """The request with an idempotency key, so that an `observe` delivered twice teaches once."""
        if not self.path.endswith("/observe") or any(name == b"idempotency-key" for name, _ in self.headers):
            return self
        return self._replace(headers=[*self.headers, (b"idempotency-key", uuid.uuid4().hex.encode())])


class ResponseMessage(NamedTuple):
    """A whole response as it travels between processes."""

    status: int
    headers: Headers
    body: bytes

    @classmethod
    def of_error(cls, error: UnseenError) -> ResponseMessage:
        """An error raised on purpose as the service words it."""
        response = error_response(error)
        return cls(response.status_code, response.raw_headers, bytes(response.body))

    def response(self) -> Response:
        """It as Ray Serve takes it."""
        response = Response(self.body, self.status)
        response.raw_headers = list(self.headers)
        return response


class EncodedUpload(NamedTuple):
    """The encoded images of a request: features, thumbnails, the hash of what was sent, and what it is called."""

    z: np.ndarray[Any, np.dtype[np.float32]]
    thumbnails: tuple[bytes, ...]
    digest: bytes
    keys: Sequence[str | None] = ()


class AppActor:
    """An actor that answers requests with the app of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.app = service, create_app(service)
        service.store.open_all()

    async def answer(self, message: RequestMessage, encoded: EncodedUpload | None = None) -> ResponseMessage:
        """What the app answers to a request, with its encoded images if there were any."""
        return await call_app(self.app, message, encoded)

    async def node(self) -> str:
        """The id of the node this runs on."""
        return str(cluster.module().get_runtime_context().get_node_id())

    async def close(self) -> None:
        """Answer what waits, snapshot, and close the files."""
        await self.service.close()


async def call_app(app: ASGIApp, message: RequestMessage, encoded: EncodedUpload | None = None) -> ResponseMessage:
    """The whole response of an app to one request."""
    status, headers, body = 500, Headers(), bytearray()

    async def send(part: Message) -> None:
        nonlocal status, headers
        if part["type"] == "http.response.start":
            status, headers = part["status"], list(part["headers"])
        else:
            body.extend(part.get("body", b""))

    await run_app(app, message, send, encoded)
    return ResponseMessage(status, headers, bytes(body))


async def run_app(
    app: ASGIApp,
    message: RequestMessage,
    send: Callable[[Message], Awaitable[None]],
    encoded: EncodedUpload | None = None,
) -> None:
    """Let an app answer one request part by part."""
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await asyncio.Event().wait()  # the caller never hangs up: a listener is cancelled instead
        is_sent = True
        return {"type": "http.request", "body": message.body, "more_body": False}

    await app({**message.scope, ENCODED: encoded}, receive, send)
