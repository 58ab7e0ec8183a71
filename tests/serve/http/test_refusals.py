"""A caller whose requests are refused does not fill the loop with them while others are active."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from unseen.serve.http import middleware
from unseen.serve.http.auth import ApiKey
from unseen.serve.http.middleware import SIZE, STATUS, AdmissionMiddleware
from unseen.serve.settings import Limits
from unseen.serve.work.caller_limiter import Activity

SCOPE = {"type": "http", "method": "POST", "path": "/v1/streams/a/observe", "headers": []}


async def started(status: int, size: int, *, others: bool, method: str = "POST") -> int:
    """How many of three requests of one caller are begun at once, where one may be worked on."""
    activity, begun = Activity(), 0

    async def app(scope, receive, send) -> None:
        nonlocal begun
        begun += 1
        scope[STATUS], scope[SIZE] = status, size

    owner = ApiKey("id", "a", "admin", "hash")
    admission = AdmissionMiddleware(app, Limits(at_once=1, reads_at_once=1), lambda scope: owner, activity)
    if others:
        activity.note("b")
    tasks = [asyncio.ensure_future(admission({**SCOPE, "method": method}, None, None)) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    first = begun
    for task in tasks:
        await task
    return first


@pytest.mark.parametrize(
    ("status", "others", "method", "begun"),
    [(422, True, "POST", 1), (200, True, "POST", 3), (422, False, "POST", 3), (404, True, "GET", 3)],
)
def test_a_refused_request_keeps_its_place_while_others_are_active(monkeypatch, status, others, method, begun):
    monkeypatch.setattr(middleware, "REFUSED_SECONDS", 0.01)
    assert asyncio.run(started(status, 0, others=others, method=method)) == begun


def test_a_large_refused_request_keeps_its_place_for_longer(monkeypatch):
    waits: list[float] = []

    async def check() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda seconds, work, *given: (waits.append(seconds), work(*given)))
        await started(413, 32 << 20, others=True)

    asyncio.run(check())
    assert waits == [2.05] * 3


def test_a_stranger_that_opens_sockets_too_often_is_refused(monkeypatch):
    monkeypatch.setattr(middleware, "REFUSAL", 0.0)
    opened: list[str] = []
    sent: list[Message] = []

    async def app(scope, receive, send) -> None:
        opened.append(scope["path"])

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def check() -> None:
        admission = AdmissionMiddleware(app, Limits(reads=1), lambda scope: None, Activity())
        scope = {**SCOPE, "type": "websocket", "client": ("10.0.0.1", 1), "extensions": {"websocket.http.response": {}}}
        for _ in range(4):
            await admission(scope, receive, send)

    asyncio.run(check())
    assert len(opened) == 2
    assert [message["status"] for message in sent if "status" in message] == [429, 429]
