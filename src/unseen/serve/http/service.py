"""What all routes share: streams, keys, limits, the encoder, listeners and counters."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from unseen.errors import ServiceError
from unseen.serve.http import views
from unseen.serve.http.auth import LOCAL, ApiKey, ApiKeys, bearer_secret, is_loopback
from unseen.serve.http.bodies import idempotency_key, read_samples
from unseen.serve.http.events import EventHub, VerdictEvent
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import Settings
from unseen.serve.stream.batch import SampleBatch, sample_batch
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.store import LocalStreams, StreamEntry, StreamStore
from unseen.serve.work.encoding import ImageEncoder, RequiredEncoder, content_digest
from unseen.serve.work.fair_pool import RateLimiter
from unseen.serve.work.jobs import Jobs

T = TypeVar("T")


class Service:
    """What all routes share."""

    def __init__(self, settings: Settings, store: StreamStore | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.store = store or LocalStreams(DataFolder(settings.data), settings)
        self.keys = ApiKeys(settings.data / "keys.json")
        self.events, self.rate = EventHub(self.limits.listeners), RateLimiter(self.limits.rate)
        self.metrics, self.jobs = Metrics(), Jobs(self.limits.jobs)
        self.encoder = ImageEncoder(settings.encoder, self.limits)

    def needs_key(self) -> bool:
        """Return whether a key is needed: where others can reach the service, and from the first key on for good."""
        return self.settings.require_key or self.keys.needed or not is_loopback(self.settings.host)

    def owner_of(self, request: Request) -> str:
        """Return whose key a request carries, or "" for none that is valid."""
        try:
            return self.authorize(bearer_secret(request), "read").owner
        except ServiceError:
            return ""

    def authorize(self, secret: str | None, scope: str) -> ApiKey:
        """Return the caller's key; refuse one that is missing, wrong or too weak."""
        if not self.needs_key():
            return LOCAL
        key = self.keys.check(secret)
        if not key.allows(scope):
            raise ServiceError(403, f"expected a key with scope {scope}, got {key.scope}; ask for another")
        return key

    def find(self, secret: str | None, id: str, scope: str) -> StreamEntry:
        """Return the stream with an id, if the caller's key may see it."""
        return self.store.find(id, self.authorize(secret, scope).owner)

    def may_read(self, secret: str | None, entry: StreamEntry) -> bool:
        """Return whether a caller may still read a stream: its key may have been revoked, the stream deleted."""
        try:
            return self.find(secret, entry.config.id, "read") is entry
        except ServiceError:
            return False

    async def run_chore(self, owner: str, work: Callable[[], T]) -> T:
        """Run what is slow and seldom away from the loop and from the writers, sharing fairly between owners."""
        return await asyncio.get_running_loop().run_in_executor(self.store.threads.chores.executor(owner), work)

    async def read_batch(self, request: Request, entry: StreamEntry) -> SampleBatch:
        """Return what a caller sent as checked features; images are encoded."""
        labels, owner = entry.opened.labels, entry.config.owner
        samples = await read_samples(request, labels.dim, self.limits)
        self.rate.take(owner, len(samples))
        key = idempotency_key(request)
        if samples.features is not None:
            return sample_batch(labels, samples.features, key, keys=samples.keys)
        z, thumbnails = await self.encoder.encode(owner, samples.images, RequiredEncoder.of(labels))
        digest = content_digest(samples.images)
        return sample_batch(labels, z, key, digest=digest, keys=samples.keys, thumbnails=thumbnails)

    async def observe(self, entry: StreamEntry, batch: SampleBatch) -> str:
        """Learn from a batch and return its verdicts as JSON, after counting them and telling listeners."""
        stream = entry.opened
        assert entry.observe is not None
        answer = await entry.observe(batch)
        verdicts = views.verdict_list(answer, stream.labels.names, batch.keys)
        text = views.dump_json(verdicts)
        if not answer.repeated:
            views.count_verdicts(self.metrics, entry, answer)
            entry.thumbnails.add(answer.first, batch.thumbnails)
            entry.keys.add(answer.first, batch.keys)
            if self.events.has_listeners(entry.config.id):
                event = views.dump_json({**verdicts, "pictured": True}) if batch.thumbnails else text
                last = answer.first + len(answer.verdicts) - 1
                self.events.publish(entry.config.id, VerdictEvent(answer.first, last, event))
            self.store.snapshot_if_due(stream)
        return text

    async def score(self, entry: StreamEntry, batch: SampleBatch) -> str:
        """Return the verdicts on a batch as JSON, without learning anything."""
        names = entry.opened.labels.names
        assert entry.score is not None
        return views.dump_json(views.verdict_list(await entry.score(batch), names, batch.keys))

    async def close(self) -> None:
        """Answer what waits, leave every stream with a fresh snapshot, and end all threads."""
        self.jobs.close()
        await self.store.idle()
        await asyncio.to_thread(self.encoder.close)
        await asyncio.to_thread(self.store.close)
