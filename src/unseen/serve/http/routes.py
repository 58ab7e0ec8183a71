"""The routes: each checks a key, calls one verb of a stream, and answers."""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response, StreamingResponse

import unseen
from unseen import LabelSpace
from unseen.errors import ServiceError
from unseen.serve.http import bodies, schema, views
from unseen.serve.http.auth import LOCAL, ApiKey, bearer_secret
from unseen.serve.http.bodies import FORM, RAW
from unseen.serve.http.service import Service
from unseen.serve.http.views import dump_json, json_response
from unseen.serve.stream.config import StreamConfig
from unseen.serve.stream.snapshots import AUTO, KEPT
from unseen.serve.stream.store import DAMAGED, OPENING, READY, REFUSED, WAITING, StreamEntry
from unseen.serve.stream.stream import Stream

router = APIRouter(responses={"4XX": {"model": schema.Error}, "5XX": {"model": schema.Error}})
SAMPLES = schema.request_body(schema.Samples, raw="Rows of little-endian float32.", form={"images": True})
SAMPLES |= {"security": [{"HTTPBearer": []}]}
IDEMPOTENT = {"parameters": [schema.IDEMPOTENCY_KEY]}
CREATE = schema.request_body(schema.StreamBody, form={"space": True, "stream": False})
RESTORE = schema.request_body(schema.RestoreBody, raw="A state in safetensors.")


async def shared_service(request: Request) -> Service:
    """Return what all routes share."""
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(shared_service)]
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]


def authorized(scope: str) -> Any:
    """Return a dependency: the caller's key, if it has a scope."""

    async def key(service: Shared, header: Credentials) -> ApiKey:
        return service.authorize(header.credentials if header else None, scope)

    return Depends(key)


def found(scope: str) -> Any:
    """Return a dependency: the stream a path names, if the caller's key has a scope."""

    async def entry(service: Shared, header: Credentials, id: str) -> StreamEntry:
        return service.find(header.credentials if header else None, id, scope)

    return Depends(entry)


Reader = Annotated[ApiKey, authorized("read")]
Admin = Annotated[ApiKey, authorized("admin")]
ReadEntry = Annotated[StreamEntry, found("read")]
ObserveEntry = Annotated[StreamEntry, found("observe")]
AdminEntry = Annotated[StreamEntry, found("admin")]


class PlainRoute(APIRoute):
    """A route that is given the request and answers with a response: nothing is solved, validated or serialised.

    The two routes that carry the traffic are such, and come first.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        endpoint: Callable[..., Coroutine[Any, Any, Response]] = self.endpoint

        async def handle(request: Request) -> Response:
            return await endpoint(request, request.path_params["id"])

        return handle


plain = APIRouter(route_class=PlainRoute, responses=router.responses)


@plain.post("/v1/streams/{id}/observe", response_model=schema.VerdictList, openapi_extra=SAMPLES | IDEMPOTENT)
async def observe(request: Request, id: str) -> Response:
    """Learn from samples and return their verdicts."""
    service: Service = request.app.state.service
    entry = service.find(bearer_secret(request), id, "observe")
    return json_response(await service.observe(entry, await service.read_batch(request, entry)))


@plain.post("/v1/streams/{id}/score", response_model=schema.VerdictList, openapi_extra=SAMPLES)
async def score(request: Request, id: str) -> Response:
    """Return the verdicts on samples without learning anything."""
    service: Service = request.app.state.service
    entry = service.find(bearer_secret(request), id, "read")
    return json_response(await service.score(entry, await service.read_batch(request, entry)))


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer while the process runs."""
    return {"status": "ok", "version": unseen.__version__}


@router.get("/readyz")
async def readyz(service: Shared) -> Response:
    """Answer whether every stream has been opened or refused, and how many of each there are."""
    statuses = [entry.status for entry in service.store.entries.values()]
    counts = {status: statuses.count(status) for status in (READY, OPENING, WAITING, DAMAGED, REFUSED)}
    text = dump_json({"ready": service.store.ready, "streams": counts})
    return json_response(text, 200 if service.store.ready else 503)


@router.get("/metrics")
async def metrics(service: Shared, key: Reader) -> Response:
    """Return counters and gauges for Prometheus."""
    if key.owner != LOCAL.owner:
        raise ServiceError(403, "expected a key of the operator (owner *), got one of a tenant; ask for another")
    text = views.metrics_text(service.metrics, service.store.entries.values())
    return Response(text, media_type="text/plain; version=0.0.4")


@router.post("/v1/streams", status_code=201, response_model=schema.StreamInfo, openapi_extra=CREATE)
async def create(service: Shared, key: Admin, request: Request) -> Any:
    """Create a stream from names, a label space the operator offers, or an uploaded one."""
    if bodies.media_type(request) == FORM:
        form = await bodies.read_form(request, service.limits)
        wanted = bodies.parse_json(form.texts.get("stream", ""), schema.StreamBody)
        labels = await service.run_chore(key.owner, partial(uploaded_space, form.files.get("space", [])))
    else:
        wanted = await bodies.read_json(request, schema.StreamBody, service.limits)
        labels = await service.wanted_space(key.owner, wanted)
    rule = wanted.threshold
    config = StreamConfig("", wanted.name, key.owner, wanted.detector, wanted.settings, rule.kind, rule.settings)
    entry = await service.run_chore(key.owner, partial(service.store.create, labels, config))
    return await described(service, entry, 201)


@router.get("/v1/streams")
async def list_streams(service: Shared, key: Reader) -> schema.StreamList:
    """List the streams the key may see."""
    summaries = [views.stream_summary(entry) for entry in service.store.owned(key.owner)]
    return schema.StreamList.model_validate({"streams": summaries})


@router.get("/v1/streams/{id}", response_model=schema.StreamInfo | schema.StreamSummary)
async def inspect(service: Shared, entry: ReadEntry) -> Response:
    """Return counts, threshold, coverage, drift and snapshots."""
    return await described(service, entry)


@router.delete("/v1/streams/{id}")
async def delete(service: Shared, entry: AdminEntry) -> dict[str, str]:
    """Delete a stream and everything it learned."""
    await service.run_chore(entry.config.owner, partial(service.store.delete, entry))
    service.metrics.forget(entry.config.id)
    service.events.end(entry.config.id)
    return {"deleted": entry.config.id}


@router.post("/v1/streams/{id}/reset", response_model=schema.StreamInfo)
async def reset(service: Shared, entry: AdminEntry) -> Response:
    """Forget everything a stream learned; sequence numbers go on."""
    await service.run_chore(entry.config.owner, entry.opened.reset)
    return await described(service, entry)


@router.get("/v1/streams/{id}/events")
async def events(service: Shared, entry: ReadEntry, request: Request) -> Response:
    """Send the verdicts of every observed sample from now on, as server-sent events."""
    if request.scope["http_version"] == "1.0":
        raise ServiceError(505, "expected HTTP/1.1 for a response without end, got HTTP/1.0; use a newer client")
    secret = bearer_secret(request)
    messages = service.events.listen(entry.config.id, lambda: service.may_read(secret, entry))
    return StreamingResponse(messages, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


@router.get("/v1/streams/{id}/pictures/{seq}")
async def thumbnail(entry: ReadEntry, seq: int) -> Response:
    """Return the thumbnail of a recent sample."""
    return Response(entry.thumbnails[seq], media_type="image/jpeg")


@router.get("/v1/streams/{id}/state")
async def state(service: Shared, entry: ReadEntry) -> Response:
    """Download the state, which `Session.load` reads."""
    stream = entry.opened
    path = stream.snapshots.folder / f".export-{time.monotonic_ns()}"
    at = await service.run_chore(entry.config.owner, partial(stream.export, path))
    return FileResponse(
        path,
        media_type=RAW,
        filename=f"{entry.config.id}-{at.seq}.safetensors",
        headers={"x-unseen-seq": str(at.seq), "x-unseen-entry": str(at.entry)},
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


@router.get("/v1/streams/{id}/snapshots", response_model=schema.SnapshotList)
async def list_snapshots(entry: ReadEntry) -> Any:
    """List the snapshots, oldest first."""
    return {"snapshots": views.snapshot_list(entry.opened.snapshots)}


@router.post("/v1/streams/{id}/snapshots", status_code=201)
async def take_snapshot(service: Shared, entry: AdminEntry) -> dict[str, int]:
    """Take a snapshot and return its number."""
    taken = await service.run_chore(entry.config.owner, partial(entry.opened.snapshot, KEPT))
    return {"snapshot": taken.entry}


@router.delete("/v1/streams/{id}/snapshots/{entry_number}")
async def delete_snapshot(service: Shared, entry: AdminEntry, entry_number: int) -> dict[str, int]:
    """Delete a snapshot taken by hand."""
    snapshots = entry.opened.snapshots
    await service.run_chore(entry.config.owner, lambda: snapshots.find(entry_number, KEPT).path.unlink())
    return {"deleted": entry_number}


@router.post("/v1/streams/{id}/restore", response_model=schema.StreamInfo, openapi_extra=RESTORE)
async def restore(service: Shared, entry: AdminEntry, request: Request) -> Response:
    """Go back to a snapshot or to an uploaded state."""
    stream = entry.opened
    if bodies.media_type(request) == RAW:
        work = partial(restore_upload, stream, await request.body())
    else:
        number = (await bodies.read_json(request, schema.RestoreBody, service.limits)).snapshot
        work = partial(stream.restore, stream.snapshots.find(number, AUTO, KEPT).path)
    await service.run_chore(entry.config.owner, work)
    return await described(service, entry)


@router.get("/v1/streams/{id}/history")
async def history(entry: ReadEntry) -> dict[str, Any]:
    """Return curves, recent margins and the latest verdicts."""
    return views.stream_history(entry)


@router.get("/v1/streams/{id}/labels")
async def labels(service: Shared, entry: ReadEntry, offset: int = 0) -> dict[str, Any]:
    """Return a page of known names, each with the negatives closest to it."""
    space = entry.opened.labels
    return await service.run_chore(entry.config.owner, partial(views.label_page, space, offset))


async def described(service: Service, entry: StreamEntry, status: int = 200) -> Response:
    """Return everything about a stream."""
    shown = await service.run_chore(entry.config.owner, partial(views.stream_info, entry))
    return json_response(dump_json(shown), status)


def uploaded_space(files: list[bodies.UploadedFile]) -> LabelSpace:
    """Return an uploaded label space."""
    if len(files) != 1:
        raise ServiceError(422, f"expected one file in the field `space`, got {len(files)}; send one")
    with bodies.as_file(files[0].data) as path:
        return LabelSpace.load(path)


def restore_upload(stream: Stream, data: bytes) -> None:
    """Restore an uploaded state."""
    with bodies.as_file(data) as path:
        stream.restore(path)
