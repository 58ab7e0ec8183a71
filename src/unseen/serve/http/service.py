"""What all routes share: streams, keys, limits, the encoder and counters."""

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from unseen.errors import ServiceError
from unseen.serve.http.auth import LOCAL, ApiKey, ApiKeys
from unseen.serve.http.bodies import RAW, idempotency_key, read_samples
from unseen.serve.http.log import RequestLog
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import Settings
from unseen.serve.stream.batch import SampleBatch, sample_batch
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.store import StreamEntry, StreamStore
from unseen.serve.work.encoding import ImageEncoder
from unseen.serve.work.jobs import Jobs
from unseen.serve.work.threads import RateLimiter

T = TypeVar("T")
Write = Callable[[Path], dict[str, str]]  # makes a file, and returns headers that say of what


class Download(StreamingResponse):
    """A file that `write` makes in a folder of its own; it lies nowhere once it is open, and ends when it is sent."""

    def __init__(self, folder: Path, write: Write, end: Callable[[], None]) -> None:
        try:
            headers = write(folder / "file")
            self.file, self.end = (folder / "file").open("rb"), end
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        headers["content-length"] = str(os.fstat(self.file.fileno()).st_size)
        super().__init__(iter(partial(self.file.read, 64 << 10), b""), headers=headers, media_type=RAW)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; the caller may leave before its end."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.file.close()
            self.end()


class Service:
    """What all routes share."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.store = StreamStore(DataFolder(settings.data), settings)
        self.keys = ApiKeys(settings.data)
        self.rate, self.jobs = RateLimiter(self.limits.rate), Jobs(self.limits.jobs)
        self.metrics = Metrics(self.store.entries.values)
        self.encoder, self.log = ImageEncoder(settings.encoder, self.limits), RequestLog(settings.logs)
        self.downloads = Counter[str]()  # that are made or sent, by owner
        self.store.on_commit = self.metrics.commit.observe

    @property
    def needs_key(self) -> bool:
        """Whether a key is needed: behind a proxy, and from the first key on for good."""
        return self.settings.behind_proxy or self.keys.needed

    def key_of(self, scope: Scope) -> ApiKey:
        """The key a request carries; refuse one that is missing, wrong or expired where one is needed."""
        if not self.needs_key:
            return LOCAL
        scheme, _, secret = Headers(scope=scope).get("authorization", "").partition(" ")
        return self.keys.check(secret if scheme.lower() == "bearer" else None)

    def may(self, scope: Scope, entry: StreamEntry) -> bool:
        """Whether a caller may still read a stream: its key may have been revoked, the stream deleted, we stop."""
        try:
            return not self.store.stopping and self.store.find(entry.config.id, self.key_of(scope).owner) is entry
        except ServiceError:
            return False

    async def run_chore(self, owner: str, work: Callable[[], T]) -> T:
        """Run what is slow and seldom away from the loop and from the writers."""
        return await asyncio.get_running_loop().run_in_executor(self.store.threads.chores(owner), work)

    async def run_parser(self, owner: str, work: Callable[[], T]) -> T:
        """Parse or check what is large away from the loop."""
        return await asyncio.get_running_loop().run_in_executor(self.store.threads.writers(owner), work)

    async def read_batch(self, request: Request, entry: StreamEntry) -> SampleBatch:
        """What a caller sent as checked features; images are encoded, and those that cannot be read are skipped."""
        labels, owner = entry.opened.labels, entry.config.owner
        samples = await read_samples(request, labels.dim, self.limits, partial(self.run_parser, owner))
        self.rate.take(owner, len(samples))
        key = idempotency_key(request)
        if samples.features is not None:
            checked = partial(sample_batch, labels, samples.features, key, keys=samples.keys)
            is_small = samples.features.nbytes <= 128 << 10  # others are served meanwhile
            return checked() if is_small else await self.run_parser(owner, checked)
        z, more = await self.encoder.encode(owner, samples.images, samples.keys, labels)
        return sample_batch(labels, z, key, **more)

    async def observe(self, entry: StreamEntry, batch: SampleBatch) -> str:
        """Learn from a batch and return its verdicts as JSON, after telling listeners."""
        assert entry.observe is not None
        answer = await entry.observe(batch)
        if not answer.repeated:
            entry.keep(answer, batch)
            self.store.snapshot_if_due(entry.opened)
        return answer.text

    async def score(self, entry: StreamEntry, batch: SampleBatch) -> str:
        """The verdicts on a batch as JSON, without learning anything."""
        assert entry.score is not None
        return (await entry.score(batch)).text

    async def download(self, entry: StreamEntry, write: Write) -> Response:
        """The file that `write` makes for one caller, with the headers that it returns.

        It is made outside the folder of its stream, which may be deleted meanwhile, and lies nowhere once it is open.
        """
        owner, most = entry.config.owner, self.limits.downloads
        if self.downloads[owner] >= most:
            raise ServiceError(429, f"expected at most {most} downloads at once, got one more; read them", "requests")
        self.downloads[owner] += 1
        end = partial(self.downloads.subtract, [owner])
        try:
            # what a kill leaves is removed at the next start
            folder = self.store.folder.streams / f".new-export-{time.monotonic_ns()}"
            threads = self.store.threads.chores(owner, "downloads")
            return await asyncio.get_running_loop().run_in_executor(threads, partial(Download, folder, write, end))
        except BaseException:
            end()
            raise

    def end_listening(self) -> None:
        """End the connections of all who listen: the service stops."""
        self.store.stopping = True
        for entry in list(self.store.entries.values()):
            entry.wake()

    async def close(self) -> None:
        """Finish what is at work, leave every stream with a fresh snapshot, and end all threads."""
        self.jobs.close()
        for close in (self.encoder.close, self.store.close, self.log.close):
            await asyncio.to_thread(close)
