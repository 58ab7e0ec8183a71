"""Many observes over one connection: a WebSocket that takes samples and answers each message in order.

A binary message is rows of float32, a text message is JSON as in POST. Every message gets one answer, a list of
verdicts or an error. Messages that wait are learned in one block, so a caller that does not wait for each answer is
served at the speed of batches. With `?session=NAME&first=N` message n is learned once, however often it is sent: a
caller that lost its connection sends again what was not answered.
"""

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from unseen.errors import ServiceError, UnseenError
from unseen.serve.http.auth import bearer_secret
from unseen.serve.http.bodies import message_samples
from unseen.serve.http.errors import error_content, error_response
from unseen.serve.http.middleware import cross_site, is_same_origin
from unseen.serve.http.service import AT_ONCE, Service
from unseen.serve.stream.batch import SampleBatch, dump_json, sample_batch
from unseen.serve.stream.store import StreamEntry

log = logging.getLogger("unseen.serve")

MESSAGE = 1 << 20  # bytes of one message
MESSAGES, BYTES = 256, 8 << 20  # of one connection that wait for answers
CHECK = 1.0  # seconds after which a caller's key is looked at again
ENDED = 1008  # policy: the key was revoked or the stream deleted


@dataclass
class Numbers:
    """The name of a session and the number of its next message."""

    session: str
    next: int

    @classmethod
    def of(cls, socket: WebSocket) -> "Numbers":
        """What the query says; refuse what cannot be a session."""
        session, first = socket.query_params.get("session", ""), socket.query_params.get("first", "0")
        if len(session) > 128 or not first.isdecimal() or len(first) > 15:
            raise ServiceError(422, "expected session=NAME and first=NUMBER, got others; see /docs", "parameters")
        return cls(session, int(first))

    def key(self) -> str | None:
        """The idempotency key of the next message, None without a session."""
        number, self.next = self.next, self.next + 1
        return f"{self.session}:{number}" if self.session else None


async def observe_socket(service: Service, socket: WebSocket, id: str) -> None:
    """Serve one connection until its caller, its key or its stream ends it."""
    try:
        if not service.needs_key() and not is_same_origin(socket.scope):
            raise cross_site()
        entry, numbers = service.find(bearer_secret(socket.scope), id, "observe"), Numbers.of(socket)
        entry.opened  # noqa: B018 - refused before the connection is accepted
        with service.sockets.held(entry.config.owner, 1):
            await socket.accept()
            await Conversation(service, socket, entry, numbers).run()
    except UnseenError as error:
        await socket.send_denial_response(error_response(error))


class Conversation:
    """The messages of one connection: one task reads and starts to learn, one answers in order."""

    def __init__(self, service: Service, socket: WebSocket, entry: StreamEntry, numbers: Numbers) -> None:
        self.service, self.socket, self.entry, self.numbers = service, socket, entry, numbers
        self._waiting: deque[tuple[int, asyncio.Future[str]]] = deque()
        self._bytes, self._moved = 0, asyncio.Event()
        self._checked = time.monotonic()

    async def run(self) -> None:
        """Read and answer until one of both ends."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._answer())]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for error in (task.exception() for task in ended):
                if error and not isinstance(error, WebSocketDisconnect | RuntimeError):  # the caller has gone
                    log.error("unexpected", exc_info=error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _, answer in self._waiting:
                answer.cancel()
        if self.socket.client_state == WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError):  # the caller was faster
                await self.socket.close(ENDED)

    async def _read(self) -> None:
        while True:
            while len(self._waiting) >= MESSAGES or self._bytes > BYTES:
                await self._changed()
            try:
                message = await self.socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] != "websocket.receive":
                return
            content: bytes | str = message.get("bytes") or message.get("text") or b""
            size = len(content)
            self._bytes += size
            batch = await self._parsed(content, self.numbers.key())
            self._waiting.append((size, asyncio.ensure_future(self._learn(batch))))
            self._moved.set()

    async def _parsed(self, content: bytes | str, key: str | None) -> SampleBatch | UnseenError:
        """The samples of a message, or why it is refused; the next one is read after that, to keep their order.

        While others are active a caller has its pace: messages go around the limits of requests.
        """
        owner = self.entry.config.owner
        await self.service.pace.acquire(owner)
        try:
            if isinstance(content, bytes) and len(content) <= AT_ONCE:
                return self._batch(content, key)
            return await self.service.run_parser(owner, partial(self._batch, content, key))
        except UnseenError as error:
            return error

    async def _learn(self, batch: SampleBatch | UnseenError) -> str:
        try:
            if isinstance(batch, UnseenError):
                raise batch
            self.service.rate.take(self.entry.config.owner, len(batch))
            return await self.service.observe(self.entry, batch)
        except UnseenError as error:
            return dump_json(error_content(error)[1])

    def _batch(self, content: bytes | str, key: str | None) -> SampleBatch:
        """The samples of a message, within the limits of a request."""
        labels, limits = self.entry.opened.labels, self.service.limits
        samples = message_samples(content, labels.dim, limits)
        assert samples.features is not None
        return sample_batch(labels, samples.features, key, keys=samples.keys)

    async def _answer(self) -> None:
        while self._may_go_on():
            if not self._waiting:
                await self._changed()
                continue
            size, answer = self._waiting[0]
            if not answer.done():
                await asyncio.wait([answer], timeout=CHECK)
                continue
            await self.socket.send_text(answer.result())
            self._waiting.popleft()
            self._bytes -= size
            self._moved.set()

    async def _changed(self) -> None:
        """Wait until something was read or answered, for a while."""
        self._moved.clear()
        try:
            await asyncio.wait_for(self._moved.wait(), CHECK)
        except TimeoutError:
            return

    def _may_go_on(self) -> bool:
        """Whether the caller may still observe, looking at its key from time to time."""
        now = time.monotonic()
        if now - self._checked < CHECK:
            return True
        self._checked = now
        return self.service.may(bearer_secret(self.socket.scope), self.entry, "observe")
