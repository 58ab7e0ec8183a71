"""The one process that teaches a stream. Its state is its journal: it is built from that and from nothing else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import torch
from fastapi import Request
from starlette.types import Message

from unseen.errors import UnseenError
from unseen.scale.serve.placement import Placement, wait_for_lock
from unseen.scale.serve.transport import ENCODED, AppActor, EncodedUpload, RequestMessage, ResponseMessage, run_app
from unseen.serve.http.bodies import idempotency_key
from unseen.serve.http.service import Service
from unseen.serve.stream.batch import SampleBatch, sample_batch
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.store import LocalStreams, StreamEntry
from unseen.serve.work.encoding import RequiredEncoder


class WriterService(Service):
    """The service of a writer: images have become features before they get here."""

    async def read_batch(self, request: Request, entry: StreamEntry) -> SampleBatch:
        encoded: EncodedUpload | None = request.scope.get(ENCODED)
        if encoded is None:
            return await super().read_batch(request, entry)
        self.rate.take(entry.config.owner, len(encoded.z))
        return sample_batch(
            entry.opened.labels,
            encoded.z,
            idempotency_key(request),
            digest=encoded.digest,
            keys=encoded.keys,
            thumbnails=encoded.thumbnails,
        )


class Writer(AppActor):
    """The actor of one stream."""

    def __init__(self, placement: Placement, id: str) -> None:
        torch.set_num_threads(placement.threads)
        self.id = id
        settings = replace(placement.settings, encoder=None)
        folder = wait_for_lock(lambda: DataFolder(settings.data, only=id))
        super().__init__(WriterService(settings, LocalStreams(folder, settings)))

    async def required_encoder(self, secret: str | None, scope: str) -> RequiredEncoder | ResponseMessage:
        """Which encoder the stream takes, or a refusal where the caller may not know the stream."""
        try:
            return RequiredEncoder.of(self.service.find(secret, self.id, scope).opened.labels)
        except UnseenError as error:
            return ResponseMessage.of_error(error)

    async def listen(self, message: RequestMessage) -> AsyncIterator[Message]:
        """Yield the parts of a response that has no end."""
        parts: asyncio.Queue[Message] = asyncio.Queue()
        task = asyncio.create_task(run_app(self.app, message, parts.put))
        try:
            while True:
                part = await parts.get()
                yield part
                if part["type"] == "http.response.body" and not part.get("more_body"):
                    return
        finally:
            task.cancel()
