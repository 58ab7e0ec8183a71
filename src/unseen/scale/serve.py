"""The service on Ray Serve: many gateways and encoders, one writer per stream.

    clients ── HTTP ──> Gateway (any number) ──> Writer of the stream (one actor) ── journal on disk
                          │   └── images ──> Eyes (any number, one encoder each)
                          └── create, list, delete ──> Roster (one actor)

A writer is the app of `unseen.serve` over one stream: the same routes, journal and snapshots. When its process or node
dies, Ray starts it again wherever the data folder can be reached, and it replays its journal before it answers. Every
`observe` carries an idempotency key, the caller's or one made here, so that a call repeated after a crash teaches once.
A lock file in the stream's folder keeps a writer that was only thought dead from writing beside its successor.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message

from unseen import LabelSpace
from unseen.errors import ServiceError, SettingError, StateError, UnseenError
from unseen.scale import cluster
from unseen.serve import front, payload
from unseen.serve.app import Service, Settings, create_app, idempotency_key
from unseen.serve.keys import Keys, loopback
from unseen.serve.run import bound
from unseen.serve.sight import Sight
from unseen.serve.sight import asked as hashed
from unseen.serve.stream import Config, Part, read_config
from unseen.serve.streams import BROKEN, READY, Slot, Streams, alone, opened

NAME = "unseen"
PATH = re.compile(r"/v1/streams/([0-9a-f]{16})(?:/(.*))?")
SHARE = 0.01  # of a CPU slot, for what mostly waits: a hundred streams fit where one slot is left
PATIENCE = 60.0  # seconds a new writer waits for the lock of one that is on its way out
SEEN = "unseen.seen"  # where a request carries what encoders saw in its images
Headers = list[tuple[bytes, bytes]]


class Asked(NamedTuple):
    """A request as it travels between processes."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


class Reply(NamedTuple):
    """A whole response as it travels between processes."""

    status: int
    headers: Headers
    body: bytes


class Facts(NamedTuple):
    """What an encoder must know of a stream."""

    dim: int
    encoder: str


class Seen(NamedTuple):
    """What encoders made of the images of a request: features, small pictures, and the hash of what was sent."""

    z: np.ndarray[Any, np.dtype[np.float32]]
    pictures: tuple[bytes, ...]
    asked: bytes


class Placed(NamedTuple):
    """How a service is spread over a cluster."""

    settings: Settings
    name: str = NAME  # of the Serve application; two services on one cluster need two
    resource: str | None = None  # only nodes with this Ray resource reach the data folder
    threads: int = 1  # of torch: what a replay computes must be what was computed before

    def actor(self, ray: Any, role: str, kind: type) -> Any:
        """Return an actor class whose one instance is found by name, is kept alive and started again when it dies."""
        return ray.remote(kind).options(
            name=f"{self.name}-{role}",
            namespace=NAME,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            num_cpus=SHARE,
            resources={self.resource: 0.001} if self.resource else None,
        )

    def find(self, ray: Any, role: str) -> Any:
        """Return the living actor of a role; ValueError when there is none."""
        return ray.get_actor(f"{self.name}-{role}", namespace=NAME)


class Alone(Streams):
    """The one stream of a writer, in the folder that `unseen serve` would use."""

    def __init__(self, settings: Settings, key: str) -> None:
        self.data, self.limits, self.durability = settings.data, settings.limits, settings.durability
        folder = settings.data / "streams" / key
        self._lock = _patiently(lambda: alone(folder / "lock"))
        self.hire(settings.compute)
        for torn in (folder / "snapshots").glob(".*"):
            torn.unlink()
        self.slots, self.ready = {key: _slot(folder)}, False


class Fleet(Streams):
    """All streams of a data folder, each opened by an actor of its own."""

    def __init__(self, ray: Any, placed: Placed) -> None:
        self.ray, self.placed = ray, placed
        super().__init__(placed.settings.data, limits=placed.settings.limits, durability=placed.settings.durability)

    def delete(self, slot: Slot) -> None:
        """Stop a stream's writer, then remove the stream."""
        self.stop(slot.config.id)
        super().delete(slot)

    def stop(self, key: str) -> None:
        """End a writer for good, after a last snapshot."""
        try:
            writer = self.placed.find(self.ray, key)
            self.ray.get(writer.close.remote(), timeout=PATIENCE)
            self.ray.kill(writer)
        except (ValueError, self.ray.exceptions.RayError):
            return  # it was not there, or died before it could be ended: the journal has everything

    def revive(self, key: str) -> bool:
        """Start a writer that is gone for good; say whether there is such a stream at all."""
        slot = self.slots.get(key)
        if slot and slot.status == READY:
            self._open(slot)
        return slot is not None and slot.status == READY

    def close(self) -> None:
        """End every writer."""
        for slot in self.slots.values():
            self.stop(slot.config.id)
        self.dismiss()
        self._lock.close()

    def _open(self, slot: Slot) -> None:
        if slot.status != BROKEN:
            kind = self.placed.actor(self.ray, slot.config.id, Writer)
            kind.remote(self.placed, slot.config.id)
            slot.status = READY

    def _swept(self) -> None:
        # half-made and half-deleted streams are ours to remove; files inside a stream belong to its writer
        for folder in (self.data / "streams").iterdir():
            if re.fullmatch("[0-9a-f]{16}", folder.name):
                self.slots[folder.name] = _slot(folder)
            elif folder.name.startswith((".new-", ".old-")):
                shutil.rmtree(folder)


class Taught(Service):
    """The service of a writer: images have become features before they get here."""

    async def part(self, request: Request, slot: Slot) -> Part:
        """Return what a caller brought, or what encoders saw in it, as checked features."""
        seen = request.scope.get(SEEN)
        if seen is None:
            return await super().part(request, slot)
        self.rate.take(slot.config.owner, len(seen.z))
        z = torch.from_numpy(seen.z.copy())
        return opened(slot).part(z, idempotency_key(request), asked=seen.asked, pictures=seen.pictures)


class Host:
    """An actor that answers requests with an app of its own."""

    app: ASGIApp
    service: Service

    async def answer(self, asked: Asked, seen: Seen | None = None) -> Reply:
        """Return what the app answers, with what encoders saw in the images if there were any."""
        return await called(self.app, asked, seen)

    async def pid(self) -> int:
        """Return the number of the process this runs in."""
        return os.getpid()

    async def close(self) -> None:
        """Answer what waits, snapshot, and let go of the files."""
        for slot in self.service.streams.slots.values():
            for gather in filter(None, (slot.observe, slot.score)):
                await gather.idle()
        await asyncio.to_thread(self.service.streams.close)


class Writer(Host):
    """The one process that teaches a stream. Its state is its journal: it is built from that and from nothing else."""

    def __init__(self, placed: Placed, key: str) -> None:
        torch.set_num_threads(placed.threads)
        settings = replace(placed.settings, encoder=None)  # images have become features on the way here
        self.key, self.service = key, Taught(settings, Alone(settings, key))
        self.app = create_app(settings, self.service)
        self.service.streams.open_all()

    async def facts(self, asked: Asked, scope: str) -> Facts | Reply:
        """Return what an encoder must know, to who may have it; else the refusal."""
        request = Request({**_scope(asked), "path_params": {"id": self.key}})
        try:
            labels = self.service.stream(request, scope).labels
        except UnseenError as error:
            return await refused(error)
        return Facts(labels.dim, labels.encoder)

    async def listen(self, asked: Asked) -> AsyncIterator[Message]:
        """Yield the messages of a response that has no end."""
        messages: asyncio.Queue[Message] = asyncio.Queue()
        task = asyncio.create_task(_run(self.app, asked, messages.put))
        try:
            while True:
                message = await messages.get()
                yield message
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    return
        finally:
            task.cancel()


class Roster(Host):
    """Who knows all streams: makes, lists and deletes them, and starts their writers."""

    def __init__(self, placed: Placed) -> None:
        torch.set_num_threads(placed.threads)
        self.fleet = _patiently(lambda: Fleet(cluster.module(), placed))
        self.service = Service(placed.settings, self.fleet)
        self.app = create_app(placed.settings, self.service)
        self.fleet.open_all()

    async def revive(self, key: str) -> bool:
        """Start a writer that is gone for good; say whether there is such a stream at all."""
        return await asyncio.to_thread(self.fleet.revive, key)


class Eyes:
    """A replica with an encoder: images in, features out."""

    def __init__(self, settings: Settings) -> None:
        self.sight = Sight(settings.encoder, settings.limits)
        self.sight.encoder()  # now, not at the first request

    async def images(self, files: list[bytes], facts: Facts) -> Seen:
        """Return what is in the images, for a label space that `facts` describe."""
        looked = await self.sight.images("*", files, cast(LabelSpace, facts))
        return Seen(looked.z.float().numpy(), looked.pictures, hashed(files))


class Gateway:
    """A replica that knows who answers what."""

    def __init__(self, placed: Placed, eyes: Any = None) -> None:
        self.ray, self.placed, self.eyes = cluster.module(), placed, eyes
        self.writers: dict[str, Any] = {}

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        asked = Asked(
            request.method, request.url.path, request.url.query.encode(), request.headers.raw, await request.body()
        )
        try:
            return await self._routed(request, asked)
        except UnseenError as error:
            return _response(await refused(error))

    async def _routed(self, request: Request, asked: Asked) -> Response:
        if len(asked.body) > (most := self.placed.settings.limits.body):
            raise ServiceError(413, f"expected at most {most:,} bytes, got more; send smaller batches")
        found = PATH.fullmatch(asked.path)
        if asked.path == "/metrics" and "stream" in request.query_params:  # each process counts what it did itself
            return _response(await self._asked(request.query_params["stream"], asked))
        if asked.path == "/v1/streams" and asked.method == "POST":
            return _response(await self._created(asked))
        if found is None or (asked.method == "DELETE" and not found[2]):
            return _response(await self._asked("roster", asked))
        key, verb = found[1], found[2] or ""
        if verb == "events":
            return await self._events(key, asked)
        seen = None
        if verb in ("observe", "score") and asked.method == "POST":
            seen = await self._seen(request, key, verb, asked)
            asked = _repeatable(asked) if seen is None else _repeatable(_without_body(asked))
        return _response(await self._asked(key, asked, seen))

    async def _created(self, asked: Asked) -> Reply:
        """Let the roster make a stream, then let its writer describe it."""
        made = await self._asked("roster", asked)
        if made.status != 201:
            return made
        key = json.loads(made.body)["id"]
        shown = await self._asked(key, _without_body(asked)._replace(method="GET", path=f"/v1/streams/{key}"))
        return Reply(201, shown.headers, shown.body) if shown.status == 200 else made

    async def _asked(self, role: str, asked: Asked, seen: Seen | None = None) -> Reply:
        return cast(Reply, await self._call(role, lambda actor: actor.answer.remote(asked, seen)))

    async def _call(self, role: str, call: Callable[[Any], Any]) -> Any:
        """Return what the actor of a role says; one that is gone for good is started again first."""
        for attempt in (1, 2):
            actor = await self._actor(role)
            try:
                return await call(actor)
            except self.ray.exceptions.RayActorError as error:
                self.writers.pop(role, None)
                if attempt == 2:
                    raise ServiceError(503, f"expected the {role} to answer, got {error}; try again") from error
        raise AssertionError("unreachable")

    async def _actor(self, role: str) -> Any:
        if role not in self.writers:
            try:
                self.writers[role] = self.placed.find(self.ray, role)
            except ValueError:
                roster = self.placed.find(self.ray, "roster")
                if role == "roster" or not await roster.revive.remote(role):
                    return roster  # it says why there is none
                self.writers[role] = self.placed.find(self.ray, role)
        return self.writers[role]

    async def _seen(self, request: Request, key: str, verb: str, asked: Asked) -> Seen | None:
        """Return what encoders see in the images of a request, if it brings any."""
        if payload.kind(request) != payload.FORM and b'"images"' not in asked.body:
            return None
        came = await payload.samples(request, 0, self.placed.settings.limits)
        if isinstance(came, torch.Tensor):
            return None
        # who may not have the verdicts shall not have the encoders either
        scope = "observe" if verb == "observe" else "read"
        facts = await self._call(key, lambda writer: writer.facts.remote(_without_body(asked), scope))
        if isinstance(facts, Reply):
            raise ServiceError(facts.status, json.loads(facts.body)["message"])
        if self.eyes is None:
            raise ServiceError(422, "expected features, got images and a service without an encoder; send features")
        try:
            return cast(Seen, await self.eyes.images.remote(came, facts))
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, UnseenError) else error from None

    async def _events(self, key: str, asked: Asked) -> Response:
        writer = await self._actor(key)
        messages = writer.listen.options(num_returns="streaming", max_task_retries=0).remote(asked)
        start = await (await anext(messages))

        async def chunks() -> AsyncIterator[bytes]:
            async for ref in messages:
                yield (await ref).get("body", b"")

        response = StreamingResponse(chunks(), start["status"])
        response.raw_headers = list(start["headers"])
        return response


def deploy(
    ray: Any, placed: Placed, *, port: int, gateways: int = 1, encoders: int = 1, gpus: float = 0
) -> Callable[[], None]:
    """Start the service on a Ray that is joined, ready to answer; return what stops it.

    There are 1 to `encoders` encoder replicas, as many as the images that wait ask for.
    """
    settings = placed.settings
    if not loopback(settings.host) and not len(Keys(settings.data / "keys.json")):
        raise SettingError(
            f"expected an API key before binding {settings.host}, got none; make one with "
            f"`unseen keys add --scope admin --data {settings.data}`"
        )
    from ray import serve

    roster = placed.actor(ray, "roster", Roster).remote(placed)
    cluster.fetched(ray, roster.answer.remote(Asked("GET", "/healthz", b"", [(b"host", b"localhost")], b"")))
    where = "HeadOnly" if loopback(settings.host) else "EveryNode"
    serve.start(proxy_location=where, http_options={"host": settings.host, "port": port})
    front_door = serve.deployment(
        Gateway, num_replicas=gateways, max_ongoing_requests=1000, ray_actor_options={"num_cpus": SHARE}
    )
    scaling = {"min_replicas": 1, "max_replicas": encoders, "target_ongoing_requests": 2}
    eyes = serve.deployment(
        Eyes, autoscaling_config=scaling, max_ongoing_requests=4, ray_actor_options={"num_cpus": 1, "num_gpus": gpus}
    )
    seeing = (eyes.bind(settings),) if settings.encoder else ()
    serve.run(front_door.bind(placed, *seeing), name=placed.name, route_prefix="/")

    def stop() -> None:
        serve.delete(placed.name)
        ray.get(roster.close.remote())
        ray.kill(roster)

    return stop


def shutdown() -> None:
    """Stop Ray Serve itself, with its proxy: for a Ray of one's own."""
    from ray import serve

    serve.shutdown()


def run(
    address: str,
    placed: Placed,
    *,
    port: int,
    announce: Callable[[str], object],
    wait: Callable[[], object],
    **options: Any,
) -> None:
    """Serve until `wait` returns, then leave every stream with a fresh snapshot."""
    host, data = placed.settings.host, placed.settings.data.resolve()
    placed = placed._replace(settings=replace(placed.settings, data=data), threads=torch.get_num_threads())
    port = port or _free(host)
    with cluster.connect(address) as ray:
        stop = deploy(ray, placed, port=port, **options)
        announce(f"unseen serves http://{host}:{port} from {data} on Ray")
        try:
            wait()
        finally:
            stop()


async def called(app: ASGIApp, asked: Asked, seen: Seen | None = None) -> Reply:
    """Return the whole response of an app to one request."""
    status, headers, body = 500, Headers(), bytearray()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
        else:
            body.extend(message.get("body", b""))

    await _run(app, asked, send, seen)
    return Reply(status, headers, bytes(body))


async def _run(app: ASGIApp, asked: Asked, send: Callable[[Message], Any], seen: Seen | None = None) -> None:
    brought = False

    async def receive() -> Message:
        nonlocal brought
        if brought:
            await asyncio.Event().wait()  # the caller never hangs up: who listened is cancelled instead
        brought = True
        return {"type": "http.request", "body": asked.body, "more_body": False}

    await app({**_scope(asked), SEEN: seen}, receive, send)


def _scope(asked: Asked) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": asked.method,
        "scheme": "http",
        "path": asked.path,
        "raw_path": asked.path.encode(),
        "root_path": "",
        "query_string": asked.query,
        "headers": asked.headers,
        "client": None,
        "server": None,
    }


async def refused(error: UnseenError) -> Reply:
    """Return an error raised on purpose as the service words it."""
    response = await front.refused(cast(Request, None), error)
    return Reply(response.status_code, response.raw_headers, bytes(response.body))


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    response.raw_headers = list(reply.headers)
    return response


def _without_body(asked: Asked) -> Asked:
    about = [(name, value) for name, value in asked.headers if not name.startswith((b"content-", b"transfer-"))]
    return asked._replace(headers=about, body=b"")


def _repeatable(asked: Asked) -> Asked:
    """Return the request with a key that makes it harmless to bring twice."""
    if not asked.path.endswith("/observe") or any(name == b"idempotency-key" for name, _ in asked.headers):
        return asked
    return asked._replace(headers=[*asked.headers, (b"idempotency-key", uuid.uuid4().hex.encode())])


def _slot(folder: Path) -> Slot:
    try:
        return Slot(read_config(folder))
    except StateError as error:
        return Slot(Config(folder.name, "", "*", ""), BROKEN, str(error))


def _patiently(take: Callable[[], Any]) -> Any:
    """Return what `take` gets, waiting for a predecessor to let go of its lock."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return take()
        except StateError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _free(host: str) -> int:
    with bound(host, 0) as listener:
        return int(listener.getsockname()[1])
