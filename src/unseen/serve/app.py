"""The routes: each checks a key, calls one verb of a stream, and answers."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from fastapi import FastAPI, Request
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response, StreamingResponse

import unseen
from unseen import LabelSpace
from unseen.errors import LabelError, ServiceError, UnseenError
from unseen.serve import payload, sight, views
from unseen.serve.direct import Direct
from unseen.serve.document import KEY_HEADER, body
from unseen.serve.events import Hub
from unseen.serve.front import Front, add_refusals
from unseen.serve.keys import LOCAL, Key, Keys, loopback
from unseen.serve.limits import Bounded, Limits, Rate
from unseen.serve.metrics import Metrics
from unseen.serve.payload import FORM, JSON, RAW, RestoreBody, Samples, StreamBody
from unseen.serve.sight import Sight
from unseen.serve.stream import AUTO, KEPT, Config, Durability, Part, Stream
from unseen.serve.streams import BROKEN, OPENING, READY, Slot, Streams, opened

PAGE = Path(__file__).parent / "page"
STATIC = {
    "": "index.html",
    "docs": "docs.html",
    **{name: name for name in ("app.js", "docs.js", "style.css", "icon.svg")},
}

T = TypeVar("T")
log = logging.getLogger("unseen.serve")


@dataclass(frozen=True)
class Settings:
    """How a service is run."""

    data: Path
    host: str = "127.0.0.1"
    encoder: str | None = "offline"
    limits: Limits = field(default_factory=Limits)
    durability: Durability = field(default_factory=Durability)
    compute: int = 1  # cores that work on one block; blocks of several streams are worked on beside each other


class Service:
    """What all routes share."""

    def __init__(self, settings: Settings, streams: Streams | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.streams = streams or Streams(
            settings.data, limits=settings.limits, durability=settings.durability, compute=settings.compute
        )
        self.keys = Keys(settings.data / "keys.json")
        self.hub, self.rate = Hub(self.limits.listeners), Rate(self.limits.rate)
        self.metrics, self.sight = Metrics(), Sight(settings.encoder, self.limits)

    @property
    def locked(self) -> bool:
        """Say whether a key is needed: where others can reach the service, or as soon as there is a key."""
        return len(self.keys) > 0 or not loopback(self.settings.host)

    def allowed(self, request: Request, scope: str) -> Key:
        """Return the caller's key; refuse one that is missing, wrong or too weak."""
        if not self.locked:
            return LOCAL
        word, _, text = request.headers.get("authorization", "").partition(" ")
        key = self.keys.check(text if word.lower() == "bearer" else None)
        if not key.allows(scope):
            raise ServiceError(403, f"expected a key with scope {scope}, got {key.scope}; ask for another")
        return key

    def slot(self, request: Request, scope: str) -> Slot:
        """Return the stream a request names, if its key may see it."""
        return self.streams.find(request.path_params["id"], self.allowed(request, scope).owner)

    def stream(self, request: Request, scope: str) -> Stream:
        """Return the stream a request names, if it is open."""
        return opened(self.slot(request, scope))

    async def chore(self, owner: str, work: Callable[[], T]) -> T:
        """Run what is slow and seldom away from the loop and from the writers, owners taking turns."""
        return await asyncio.get_running_loop().run_in_executor(self.streams.chores.of(owner), work)

    async def part(self, request: Request, slot: Slot) -> Part:
        """Return what a caller brought as checked features."""
        stream, owner = opened(slot), slot.config.owner
        came = await payload.samples(request, stream.labels.dim, self.limits)
        self.rate.take(owner, len(came))
        key = idempotency_key(request)
        if isinstance(came, torch.Tensor):
            return stream.part(came, key)
        looked = await self.sight.images(owner, came, stream.labels)
        return stream.part(looked.z, key, asked=sight.asked(came), pictures=looked.pictures)

    async def observe(self, slot: Slot, part: Part) -> str:
        """Return what the writer says of a part, after counting it and telling who listens."""
        stream = opened(slot)
        assert slot.observe is not None
        answer = await slot.observe(part)
        said = payload.verdicts(answer, stream.labels.names)
        text = payload.dumped(said)
        if not answer.repeated:
            views.counted(self.metrics, slot, answer)
            slot.pictures.add(answer.first, part.pictures)
            if self.hub.heard(slot.config.id):
                pictured = payload.dumped({**said, "pictured": True}) if part.pictures else text
                self.hub.publish(slot.config.id, answer.first, pictured)
            self.streams.snapshot_due(stream)
        return text


def create_app(settings: Settings, service: Service | None = None) -> FastAPI:
    """Return the service as an ASGI application: one of all streams in its folder, or the one given."""
    service = service or Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.get_running_loop().run_in_executor(service.streams.keeper, service.streams.open_all)
        yield
        service.hub.close()
        await opening
        for slot in service.streams.slots.values():
            for gather in filter(None, (slot.observe, slot.score)):
                await gather.idle()
        await asyncio.to_thread(service.sight.close)
        await asyncio.to_thread(service.streams.close)

    app = FastAPI(title="unseen", version=unseen.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    traffic = {"observe": partial(observe, service), "score": partial(score, service)}
    app.add_middleware(Direct, handlers=traffic)
    app.add_middleware(Bounded, limits=settings.limits)
    app.add_middleware(Front, metrics=service.metrics, is_open=lambda: not service.locked)
    add_refusals(app)
    add_health(app, service)
    add_streams(app, service)
    add_samples(app, service)
    add_snapshots(app, service)
    add_views(app, service)
    return app


def add_health(app: FastAPI, service: Service) -> None:
    """Say whether the process lives, whether it is ready, and what it counted; serve the page."""

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "version": unseen.__version__}

    @app.get("/readyz")
    async def readyz() -> Response:
        found = [slot.status for slot in service.streams.slots.values()]
        counts = {status: found.count(status) for status in (READY, OPENING, BROKEN)}
        text = payload.dumped({"ready": service.streams.ready, "streams": counts})
        return payload.answered(text, 200 if service.streams.ready else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        if service.allowed(request, "read").owner != LOCAL.owner:
            raise ServiceError(403, "expected a key of the operator (owner *), got one of a tenant; ask for another")
        return Response(
            views.measured(service.metrics, service.streams.slots.values()), media_type="text/plain; version=0.0.4"
        )

    def page(name: str) -> Callable[[], Awaitable[Response]]:
        async def show() -> Response:
            return FileResponse(PAGE / name)

        return show

    for path, name in STATIC.items():
        app.get(f"/{path}", include_in_schema=False)(page(name))


def add_streams(app: FastAPI, service: Service) -> None:
    """Create, list, inspect, reset and delete streams."""

    @app.post("/v1/streams", status_code=201, openapi_extra=body({JSON: StreamBody, FORM: {"space": 1, "stream": 0}}))
    async def create(request: Request) -> Response:
        owner = service.allowed(request, "admin").owner
        if payload.kind(request) == FORM:
            form = await payload.form(request, service.limits)
            wanted = payload.valid(form.texts.get("stream", ""), StreamBody)
            labels = await service.chore(owner, partial(uploaded_space, form.files.get("space", [])))
        else:
            wanted = await payload.parsed(request, StreamBody)
            labels = await wanted_space(service, owner, wanted)
        config = Config(
            "",
            wanted.name,
            owner,
            wanted.detector,
            wanted.settings,
            wanted.threshold.kind,
            wanted.threshold.settings,
        )
        slot = await service.chore(owner, partial(service.streams.create, labels, config))
        return await described(service, slot, 201)

    @app.get("/v1/streams")
    async def listed(request: Request) -> dict[str, Any]:
        owner = service.allowed(request, "read").owner
        return {"streams": [views.brief(slot) for slot in service.streams.owned(owner)]}

    @app.get("/v1/streams/{id}")
    async def inspect(request: Request, id: str) -> Response:
        return await described(service, service.slot(request, "read"))

    @app.delete("/v1/streams/{id}")
    async def delete(request: Request, id: str) -> dict[str, str]:
        slot = service.slot(request, "admin")
        await service.chore(slot.config.owner, partial(service.streams.delete, slot))
        return {"deleted": slot.config.id}

    @app.post("/v1/streams/{id}/reset")
    async def reset(request: Request, id: str) -> Response:
        slot = service.slot(request, "admin")
        await service.chore(slot.config.owner, opened(slot).reset)
        return await described(service, slot)


def add_samples(app: FastAPI, service: Service) -> None:
    """Observe and score samples, and listen to what is said of them."""
    document = body({JSON: Samples, RAW: None, FORM: {"images": 1}})

    @app.post("/v1/streams/{id}/observe", openapi_extra=document | KEY_HEADER)
    async def observed(request: Request, id: str) -> Response:
        return await observe(service, request)

    @app.post("/v1/streams/{id}/score", openapi_extra=document)
    async def scored(request: Request, id: str) -> Response:
        return await score(service, request)

    @app.get("/v1/streams/{id}/events")
    async def events(request: Request, id: str) -> Response:
        messages = service.hub.listen(service.slot(request, "read").config.id)
        return StreamingResponse(messages, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    @app.get("/v1/streams/{id}/pictures/{seq}")
    async def picture(request: Request, id: str, seq: int) -> Response:
        return Response(service.slot(request, "read").pictures[seq], media_type="image/jpeg")


def add_snapshots(app: FastAPI, service: Service) -> None:
    """Download the state, take snapshots, and go back to one."""

    @app.get("/v1/streams/{id}/state")
    async def state(request: Request, id: str) -> Response:
        stream = service.stream(request, "read")
        path = stream.folder / "snapshots" / f".export-{time.monotonic_ns()}"
        at = await service.chore(stream.config.owner, partial(stream.export, path))
        return FileResponse(
            path,
            media_type=RAW,
            filename=f"{stream.config.id}-{at.seq}.safetensors",
            headers={"x-unseen-seq": str(at.seq), "x-unseen-entry": str(at.entry)},
            background=BackgroundTask(path.unlink, missing_ok=True),
        )

    @app.get("/v1/streams/{id}/snapshots")
    async def snapshots(request: Request, id: str) -> dict[str, Any]:
        return {"snapshots": views.saved(service.stream(request, "read"))}

    @app.post("/v1/streams/{id}/snapshots", status_code=201)
    async def take(request: Request, id: str) -> dict[str, Any]:
        stream = service.stream(request, "admin")
        taken = await service.chore(stream.config.owner, partial(stream.snapshot, KEPT))
        return {"snapshot": taken.entry}

    @app.delete("/v1/streams/{id}/snapshots/{entry}")
    async def drop(request: Request, id: str, entry: int) -> dict[str, int]:
        stream = service.stream(request, "admin")
        await service.chore(stream.config.owner, partial(stream.drop, entry))
        return {"deleted": entry}

    @app.post("/v1/streams/{id}/restore", openapi_extra=body({JSON: RestoreBody, RAW: None}))
    async def restore(request: Request, id: str) -> Response:
        slot = service.slot(request, "admin")
        stream = opened(slot)
        if payload.kind(request) == RAW:
            await service.chore(slot.config.owner, partial(restore_bytes, stream, await request.body()))
        else:
            wanted = await payload.parsed(request, RestoreBody)
            source = stream.find(wanted.snapshot, AUTO, KEPT).path
            await service.chore(slot.config.owner, partial(stream.restore, source))
        return await described(service, slot)


def add_views(app: FastAPI, service: Service) -> None:
    """Show what a page draws: how it went, and the label space with what lies nearest."""

    @app.get("/v1/streams/{id}/history")
    async def history(request: Request, id: str) -> dict[str, Any]:
        return views.past(service.slot(request, "read"))

    @app.get("/v1/streams/{id}/labels")
    async def labels(request: Request, id: str, offset: int = 0) -> Response:
        stream = service.stream(request, "read")
        shown = await service.chore(stream.config.owner, partial(views.nearest, stream.labels, offset))
        return payload.answered(payload.dumped(shown))


async def observe(service: Service, request: Request) -> Response:
    """Learn and score."""
    slot = service.slot(request, "observe")
    return payload.answered(await service.observe(slot, await service.part(request, slot)))


async def score(service: Service, request: Request) -> Response:
    """Score only."""
    slot = service.slot(request, "read")
    part = await service.part(request, slot)
    stream = opened(slot)
    assert slot.score is not None
    return payload.answered(payload.dumped(payload.verdicts(await slot.score(part), stream.labels.names)))


async def described(service: Service, slot: Slot, status: int = 200) -> Response:
    """Return everything there is to say about a stream."""
    shown = await service.chore(slot.config.owner, partial(views.described, slot))
    return payload.answered(payload.dumped(shown), status)


def idempotency_key(request: Request) -> str | None:
    """Return the key that makes a retry harmless, if there is one."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 256:
        raise ServiceError(422, f"expected an Idempotency-Key of 1 to 256 characters, got {len(key)}; use a UUID")
    return key


async def wanted_space(service: Service, owner: str, wanted: StreamBody) -> LabelSpace:
    """Return the label space a body asks for: named by the operator, or built from names."""
    if (wanted.names is None) == (wanted.space is None):
        raise ServiceError(422, "expected either names or a space, got both or neither; send one of them")
    if wanted.space is not None:
        return await service.chore(owner, partial(service.streams.space, wanted.space))
    return await service.sight.space(owner, wanted.names or [], wanted.negatives)


def uploaded_space(files: list[bytes]) -> LabelSpace:
    """Return an uploaded label space, read from a file that we named."""
    if len(files) != 1:
        raise ServiceError(422, f"expected one file in the field `space`, got {len(files)}; send one")
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(files[0])
        file.flush()
        try:
            return LabelSpace.load(file.name)
        except (KeyError, TypeError, AttributeError) as error:
            raise LabelError(f"expected a label space, got a file without {error}; use LabelSpace.save") from error
        except UnseenError as error:
            raise LabelError(str(error).replace(file.name, "the upload")) from error


def restore_bytes(stream: Stream, data: bytes) -> None:
    """Restore an uploaded state, read from a file that we named."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        try:
            stream.restore(Path(file.name))
        except (KeyError, TypeError, AttributeError) as error:
            raise ServiceError(422, f"expected a state, got a file without {error}; use Session.save") from error
        except UnseenError as error:
            if isinstance(error, ServiceError):
                raise
            raise ServiceError(422, str(error).replace(file.name, "the upload")) from error
