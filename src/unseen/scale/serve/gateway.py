"""Replicas that take requests and hand each to the actor that answers it, and replicas that encode images."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from unseen.errors import ServiceError, UnseenError
from unseen.scale import cluster
from unseen.scale.serve.placement import DIRECTORY, Placement
from unseen.scale.serve.transport import EncodedUpload, RequestMessage, ResponseMessage
from unseen.serve.http.auth import bearer_secret
from unseen.serve.http.bodies import FORM, media_type, read_samples
from unseen.serve.http.middleware import check_size
from unseen.serve.settings import EVERYONE, Settings
from unseen.serve.stream.config import STREAM_ID
from unseen.serve.work.encoding import ImageEncoder, RequiredEncoder, content_digest

STREAM_PATH = re.compile(rf"/v1/streams/({STREAM_ID.pattern})(?:/(.*))?")
SCOPES = {"observe": "observe", "score": "read"}  # of the verbs that take images

T = TypeVar("T")


class EncoderReplica:
    """A replica with an encoder: images in, features out."""

    def __init__(self, settings: Settings) -> None:
        self.encoder = ImageEncoder(settings.encoder, settings.limits)
        self.encoder.encoder()  # now, not at the first request

    async def encode(self, files: list[bytes], required: RequiredEncoder) -> EncodedUpload:
        """The encoded images, for a stream that takes the required encoder."""
        encoded = await self.encoder.encode(EVERYONE, files, required)
        return EncodedUpload(encoded.z.float().numpy(), encoded.thumbnails, content_digest(files))


class Gateway:
    """A replica that knows which actor answers what."""

    def __init__(self, placement: Placement, encoders: Any = None) -> None:
        self.ray, self.placement, self.encoders = cluster.module(), placement, encoders
        self.actors: dict[str, Any] = {}

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        message = await RequestMessage.of(request)
        try:
            return await self._route(request, message)
        except UnseenError as error:
            return ResponseMessage.of_error(error).response()

    async def _route(self, request: Request, message: RequestMessage) -> Response:
        check_size(len(message.body), self.placement.settings.limits)
        found = STREAM_PATH.fullmatch(message.path)
        if message.path == "/metrics" and "stream" in request.query_params:  # each process counts what it did itself
            return (await self._answer(request.query_params["stream"], message)).response()
        if message.path == "/v1/streams" and message.method == "POST":
            return (await self._create(message)).response()
        if found is None or (message.method == "DELETE" and not found[2]):
            return (await self._answer(DIRECTORY, message)).response()
        if found[2] == "events":
            return await self._events(found[1], message)
        if found[2] in SCOPES and message.method == "POST":
            return (await self._samples(request, found[1], found[2], message)).response()
        return (await self._answer(found[1], message)).response()

    async def _create(self, message: RequestMessage) -> ResponseMessage:
        """Let the directory make a stream, then let its writer describe it."""
        made = await self._answer(DIRECTORY, message)
        if made.status != 201:
            return made
        id = json.loads(made.body)["id"]
        shown = await self._answer(id, message.without_body()._replace(method="GET", path=f"/v1/streams/{id}"))
        return shown._replace(status=201) if shown.status == 200 else made

    async def _samples(self, request: Request, id: str, verb: str, message: RequestMessage) -> ResponseMessage:
        """Let a stream observe or score samples; images are encoded on the way."""
        encoded = await self._encode(request, id, SCOPES[verb], message)
        if encoded is not None:
            message = message.without_body()
        return await self._answer(id, message.repeatable(), encoded)

    async def _answer(
        self, role: str, message: RequestMessage, encoded: EncodedUpload | None = None
    ) -> ResponseMessage:
        answer: ResponseMessage = await self._call(role, lambda actor: actor.answer.remote(message, encoded))
        return answer

    async def _call(self, role: str, call: Callable[[Any], Awaitable[T]]) -> T:
        """What the actor of a role answers; one that is gone for good is started again first."""
        for attempt in (1, 2):
            actor = await self._actor(role)
            try:
                return await call(actor)
            except self.ray.exceptions.RayActorError as error:
                self.actors.pop(role, None)
                if attempt == 2:
                    raise ServiceError(503, f"expected the {role} to answer, got {error}; try again") from error
        raise AssertionError("unreachable")

    async def _actor(self, role: str) -> Any:
        if role not in self.actors:
            try:
                self.actors[role] = self.placement.find(self.ray, role)
            except ValueError:
                directory = self.placement.find(self.ray, DIRECTORY)
                if role == DIRECTORY or not await directory.revive.remote(role):
                    return directory  # it says why there is none
                self.actors[role] = self.placement.find(self.ray, role)
        return self.actors[role]

    async def _encode(self, request: Request, id: str, scope: str, message: RequestMessage) -> EncodedUpload | None:
        """The encoded images of a request, if it brings any."""
        media = media_type(request)
        if media != FORM and not media.startswith("image/") and b'"images"' not in message.body:
            return None
        samples = await read_samples(request, 1, self.placement.settings.limits)
        if samples.features is not None:
            return None
        # who may not have the verdicts shall not have the encoders either
        secret = bearer_secret(request.scope)
        required = await self._call(id, lambda writer: writer.required_encoder.remote(secret, scope))
        if isinstance(required, ResponseMessage):
            raise ServiceError(required.status, json.loads(required.body)["message"])
        if self.encoders is None:
            raise ServiceError(422, "expected features, got images and a service without an encoder; send features")
        try:
            encoded: EncodedUpload = await self.encoders.encode.remote(list(samples.images), required)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, UnseenError) else error from None
        return encoded._replace(keys=samples.keys)

    async def _events(self, id: str, message: RequestMessage) -> Response:
        writer = await self._actor(id)
        parts = writer.listen.options(num_returns="streaming", max_task_retries=0).remote(message)
        start = await (await anext(parts))

        async def chunks() -> AsyncIterator[bytes]:
            async for ref in parts:
                yield (await ref).get("body", b"")

        response = StreamingResponse(chunks(), start["status"])
        response.raw_headers = list(start["headers"])
        return response
