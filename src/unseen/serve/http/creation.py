"""Creating a stream: a job that fast callers do not notice, and that slow ones can watch, cancel and ask for again."""

import asyncio
import hashlib
import secrets
from functools import partial
from typing import NamedTuple

from fastapi import Request
from starlette.datastructures import UploadFile

from unseen import LabelSpace
from unseen.errors import ServiceError
from unseen.serve.http import bodies, schema
from unseen.serve.http.service import Service
from unseen.serve.settings import Limits
from unseen.serve.stream.folder import STREAM_ID, StreamConfig
from unseen.serve.stream.store import StreamEntry
from unseen.serve.work.jobs import Job, refuse_other_request

WANTED_ID = "x-unseen-stream"  # in which nginx says what a new stream is to be called: its place follows from that


class Creation(NamedTuple):
    """What a caller wants: a stream, perhaps over an uploaded label space."""

    wanted: schema.StreamBody
    upload: bytes | None = None

    @property
    def digest(self) -> str:
        """A hash of what was asked for."""
        asked = self.wanted.model_dump_json().encode() + (self.upload or b"")
        return hashlib.blake2b(asked, digest_size=16).hexdigest()


async def read_creation(request: Request, limits: Limits) -> Creation:
    """What a request to create a stream asks for."""
    if bodies.media_type(request) != bodies.FORM:
        creation = Creation(bodies.parse_json(await request.body() or b"{}", schema.StreamBody))
    else:
        async with bodies.form_of(request, limits) as form:
            texts = [one for one in form.getlist("stream") if isinstance(one, str)] or ["{}"]
            files = [await one.read() for one in form.getlist("space") if isinstance(one, UploadFile)]
        if len(texts) > 1 or len(files) > 1:
            raise ServiceError(422, "expected one `stream` and one file `space` in a form, got more; send one")
        creation = Creation(bodies.parse_json(texts[0], schema.StreamBody), *files)
    given = (creation.wanted.names, creation.wanted.space, creation.upload)
    if sum(one is not None for one in given) != 1:
        raise ServiceError(422, "expected either names or a space, got both or neither; send one of them")
    return creation


async def start(service: Service, owner: str, request: Request) -> Job:
    """The job that creates the stream a request asks for.

    Job and stream have one id, so that both are found on the same of several instances; it follows from the caller's
    idempotency key, so that a request that is sent again finds what it made.
    """
    creation = await read_creation(request, service.limits)
    key = bodies.idempotency_key(request)
    id = hashlib.blake2b(f"{owner} {key}".encode(), digest_size=8).hexdigest() if key else secrets.token_hex(8)
    wanted = request.headers.get(WANTED_ID) if service.settings.behind_proxy else None
    if wanted and STREAM_ID.fullmatch(wanted):
        id = wanted
    if (entry := service.store.entries.get(id)) and entry.config.owner == owner:
        refuse_other_request(entry.config.request, creation.digest)
    return service.jobs.start(owner, creation.digest, partial(run, service, creation), id)


async def run(service: Service, creation: Creation, job: Job) -> str:
    """The id of the stream that a job creates, or that an earlier process made for the same request.

    Not the stream: jobs are remembered after their streams are deleted.
    """
    entry = service.store.entries.get(job.id)
    if entry and entry.config.owner == job.owner:
        return job.id
    labels = await label_space(service, creation, job)
    wanted, rule = creation.wanted, creation.wanted.threshold
    config = StreamConfig(
        job.id, wanted.name, job.owner, wanted.detector, wanted.settings, rule.kind, rule.settings, request=job.request
    )
    job.stage = "opening"
    job.progress(0, 0)
    made = asyncio.ensure_future(service.run_chore(job.owner, partial(service.store.create, labels, config)))
    try:
        return (await asyncio.shield(made)).config.id
    except asyncio.CancelledError:  # what a thread makes is made whole, then removed
        made.add_done_callback(partial(remove, service))
        raise


def remove(service: Service, made: asyncio.Future[StreamEntry]) -> None:
    """Delete the stream of a job that was cancelled while a thread made it."""
    if not made.cancelled() and not made.exception():
        service.store.delete(made.result())


async def label_space(service: Service, creation: Creation, job: Job) -> LabelSpace:
    """The label space a stream is wanted for: uploaded, offered by the operator, or built from names."""
    wanted, folder = creation.wanted, service.store.folder
    if wanted.names is not None:
        job.stage = "encoding words"
        return await service.encoder.space(wanted.names, wanted.negatives, progress=job.progress)
    job.stage = "reading"
    if creation.upload is None:
        return await service.run_chore(job.owner, partial(folder.space, str(wanted.space)))
    return await service.run_chore(job.owner, partial(bodies.read_space, creation.upload, service.limits))
