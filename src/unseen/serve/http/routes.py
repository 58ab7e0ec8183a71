"""The routes: each checks a key, calls one verb of a stream, and answers."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Header, Query, Request, Security
from fastapi.security import HTTPBearer
from starlette.responses import Response, StreamingResponse

import unseen
from unseen.errors import ServiceError
from unseen.serve.http import answers, creation, schema, views
from unseen.serve.http.auth import KEY, LOCAL, SCOPES, ApiKey
from unseen.serve.http.bodies import RAW
from unseen.serve.http.events import VerdictEvent, listen
from unseen.serve.http.service import Service
from unseen.serve.stream.batch import dump_json
from unseen.serve.stream.history import UnknownAlarm
from unseen.serve.stream.store import Status, StreamEntry

ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": answers.Error}, "5XX": {"model": answers.Error}}
BEARER = [Security(HTTPBearer(auto_error=False))]
router = APIRouter(responses=ERRORS, dependencies=BEARER)
plain = APIRouter(responses=ERRORS)  # without a key, or without what the framework would solve for very many requests
BINARY = {
    RAW: "Rows of little-endian float32: the fast way.",
    "image/*": "One image file; `?key=` is what it is called.",
}
SAMPLES = schema.request_body(schema.Samples, raw=BINARY, form={"images": True})
STREAM_PARAMETER = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
SAMPLES |= {"security": [{"HTTPBearer": []}], "parameters": [STREAM_PARAMETER]}
IDEMPOTENT = {"parameters": [schema.IDEMPOTENCY_KEY]}
OBSERVE = SAMPLES | {"parameters": [STREAM_PARAMETER, schema.IDEMPOTENCY_KEY]}
CREATE = schema.request_body(schema.StreamBody, form={"space": True, "stream": False}) | IDEMPOTENT
CREATED: dict[int | str, dict[str, Any]] = {202: {"model": answers.JobInfo, "description": "A job that goes on."}}


def sent_as(media: str) -> dict[int | str, dict[str, Any]]:
    """The description of an answer that is no JSON."""
    return {200: {"content": {media: {}}}}


async def shared_service(request: Request) -> Service:
    """What all routes share."""
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(shared_service)]


def json_response(text: str, status: int = 200) -> Response:
    """JSON text as a response; what is large or frequent is not serialised by the framework."""
    return Response(text, status_code=status, media_type="application/json")


def caller(request: Request, scope: str) -> ApiKey:
    """The key that a request came with, if its scope includes another."""
    key: ApiKey = request.scope[KEY]
    if SCOPES.index(key.scope) < SCOPES.index(scope):
        raise ServiceError(403, f"expected a key with scope {scope}, got {key.scope}; ask for another")
    return key


def authorized(scope: str) -> Any:
    """A dependency: the caller's key, if it has a scope."""

    async def key(request: Request) -> ApiKey:
        return caller(request, scope)

    return Depends(key)


def found(scope: str) -> Any:
    """A dependency: the stream a path names, if the caller's key has a scope."""

    async def entry(request: Request, service: Shared, id: str) -> StreamEntry:
        return service.store.find(id, caller(request, scope).owner)

    return Depends(entry)


Reader = Annotated[ApiKey, authorized("read")]
Admin = Annotated[ApiKey, authorized("admin")]
ReadEntry = Annotated[StreamEntry, found("read")]
AdminEntry = Annotated[StreamEntry, found("admin")]
Wait = Annotated[float, Query(ge=0, le=30)]


@plain.post("/v1/streams/{id}/observe", response_model=answers.VerdictList, openapi_extra=OBSERVE)
async def observe(request: Request) -> Response:
    """Learn from samples and return their verdicts."""
    service: Service = request.app.state.service
    entry = service.store.find(request.path_params["id"], caller(request, "observe").owner)
    return json_response(await service.observe(entry, await service.read_batch(request, entry)))


@plain.post("/v1/streams/{id}/score", response_model=answers.VerdictList, openapi_extra=SAMPLES)
async def score(request: Request) -> Response:
    """The verdicts on samples without learning anything."""
    service: Service = request.app.state.service
    entry = service.store.find(request.path_params["id"], caller(request, "read").owner)
    return json_response(await service.score(entry, await service.read_batch(request, entry)))


@plain.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer while the process runs."""
    return {"status": "ok", "version": unseen.__version__}


@plain.get("/readyz")
async def readyz(service: Shared) -> Response:
    """Answer whether every stream has been opened or refused, and how many of each there are."""
    statuses = [entry.status for entry in service.store.entries.values()]
    counts = {status: statuses.count(status) for status in get_args(Status)}
    text = dump_json({"ready": service.store.ready, "streams": counts})
    return json_response(text, 200 if service.store.ready else 503)


@router.get("/metrics", response_class=Response, responses=sent_as("text/plain; version=0.0.4; charset=utf-8"))
async def metrics(service: Shared, key: Reader) -> Response:
    """Counters and gauges for Prometheus."""
    if key.owner != LOCAL.owner:
        raise ServiceError(403, "expected a key of the operator (owner *), got one of a tenant; ask for another")
    service.metrics.log_dropped.set(service.log.dropped)
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


@router.post("/v1/streams", status_code=201, response_model=answers.StreamInfo, responses=CREATED, openapi_extra=CREATE)
async def create(service: Shared, key: Admin, request: Request, wait: Wait = 5) -> Response:
    """Create a stream from names, a label space the operator offers, or an uploaded one.

    What takes longer than `wait` seconds is answered with a job, 202.
    """
    job = await creation.start(service, key.owner, request)
    if await job.wait(wait):
        return await described(service, service.store.find(job.found(), job.owner), 201)
    response = json_response(dump_json(views.job_info(job)), 202)
    response.headers.update({"location": f"/v1/jobs/{job.id}", "retry-after": "1"})
    return response


@router.get("/v1/jobs/{id}", response_model=answers.JobInfo)
async def watch_job(service: Shared, key: Reader, id: str, wait: Wait = 0) -> Any:
    """How far a job is and, when it is done, the id of its stream; `wait` is in seconds."""
    job = service.jobs.find(key.owner, id)
    await job.wait(wait)
    return views.job_info(job)


@router.delete("/v1/jobs/{id}", response_model=answers.JobInfo)
async def cancel_job(service: Shared, key: Admin, id: str) -> Any:
    """Cancel a job; one that has ended stays as it is."""
    job = service.jobs.find(key.owner, id)
    job.cancel()
    await job.wait(1)
    return views.job_info(job)


@router.get("/v1/streams", response_model=answers.StreamList)
async def list_streams(service: Shared, key: Reader) -> Response:
    """List the streams the key may see, and the label spaces that the operator offers for new ones."""
    shown = [views.stream_summary(entry) for entry in service.store.owned(key.owner)]
    return json_response(dump_json({"streams": shown, "spaces": sorted(service.store.folder.spaces())}))


@router.get("/v1/streams/{id}", response_model=answers.StreamInfo | answers.StreamSummary)
async def inspect(service: Shared, entry: ReadEntry, recent: bool = False) -> Response:
    """Counts, threshold, drift and snapshots; with `recent` the latest margins and verdicts too."""
    return await described(service, entry, recent=recent)


@router.delete("/v1/streams/{id}")
async def delete(service: Shared, entry: AdminEntry) -> dict[str, str]:
    """Delete a stream and everything it learned."""
    await service.run_chore(entry.config.owner, partial(service.store.delete, entry))
    entry.wake()
    return {"deleted": entry.config.id}


@router.post("/v1/streams/{id}/alarm")
async def restart_alarm(entry: AdminEntry, body: schema.AlarmBody) -> answers.AlarmInfo:
    """Take note of an alarm on the unknown rate: the test starts again, with an allowed rate or one learned anew."""
    watch = entry.opened.history.watch = UnknownAlarm(body.allowed)
    return answers.AlarmInfo.model_validate(watch.shown())


@router.get("/v1/streams/{id}/events", response_class=Response, responses=sent_as("text/event-stream"))
async def events(
    service: Shared, entry: ReadEntry, request: Request, last_event_id: Annotated[int | None, Header()] = None
) -> Response:
    """Send the verdicts of every observed sample from now on, as server-sent events.

    With `Last-Event-ID` those after that sample come first, as far as they are kept; `missed` says which are not.
    """
    after = newest = entry.opened.at.seq - 1
    if last_event_id is not None:  # it may be later: the service may have been restored from a backup
        after = max(-1, min(last_event_id, newest))

    async def kept(after: int) -> list[VerdictEvent]:
        if entry.opened.at.seq - 1 <= after:
            return []
        return await service.run_chore(entry.config.owner, partial(views.kept_events, entry, after))

    may_listen = partial(service.may, request.scope, entry)
    messages = listen(entry.listeners, service.limits.listeners, after, kept, may_listen)
    return StreamingResponse(messages, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


@router.get("/v1/streams/{id}/pictures/{seq}", response_class=Response, responses=sent_as("image/jpeg"))
async def thumbnail(entry: ReadEntry, seq: int) -> Response:
    """The thumbnail of a recent sample."""
    found = entry.thumbnail(seq)
    if found is None:
        raise ServiceError(404, f"expected the number of one of the latest samples, got {seq}; it is not kept")
    return Response(found, media_type="image/jpeg")


@router.get("/v1/streams/{id}/state", response_class=Response, responses=sent_as(RAW))
async def state(service: Shared, entry: ReadEntry) -> Response:
    """Download the state, which `Session.load` reads."""
    stream = entry.opened

    def write(path: Path) -> dict[str, str]:
        at = stream.export(path)
        return {"x-unseen-seq": str(at.seq), "x-unseen-entry": str(at.entry)}

    return await service.download(entry, write)


@router.get("/v1/streams/{id}/space", responses={200: {"model": answers.NameList, **sent_as(RAW)[200]}})
async def label_space(
    service: Shared, entry: ReadEntry, format: Literal["safetensors", "json"] = "safetensors"
) -> Response:
    """Download the label space of now, which the state needs, or see its names."""
    labels = entry.opened.labels
    if format == "json":
        return json_response(dump_json({"names": labels.names}))

    def write(path: Path) -> dict[str, str]:
        labels.save(path)
        return {"x-unseen-labels": labels.fingerprint}

    return await service.download(entry, write)


@router.post("/v1/streams/{id}/snapshots", status_code=201)
async def take_snapshot(service: Shared, entry: AdminEntry) -> dict[str, int]:
    """Take a snapshot and return its number; where there are too many, the oldest makes room."""
    taken = await service.run_chore(entry.config.owner, entry.opened.snapshot)
    return {"snapshot": taken.entry}


@router.post("/v1/streams/{id}/restore", response_model=answers.StreamInfo)
async def restore(service: Shared, entry: AdminEntry, body: schema.RestoreBody) -> Response:
    """Go back to a snapshot, or to the beginning (snapshot 0); sequence numbers go on."""
    stream = entry.opened
    work = partial(stream.restore, body.snapshot) if body.snapshot else stream.reset
    await service.run_chore(entry.config.owner, work)
    return await described(service, entry)


async def described(service: Service, entry: StreamEntry, status: int = 200, *, recent: bool = False) -> Response:
    """Everything about a stream."""
    text = await service.run_chore(entry.config.owner, lambda: dump_json(views.stream_info(entry, recent=recent)))
    return json_response(text, status)
