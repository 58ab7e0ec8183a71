"""What all routes share: streams, keys, limits, the encoder, listeners and counters."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.types import Scope

from unseen.errors import ServiceError
from unseen.serve.http.auth import KEY, LOCAL, NEEDS_KEY, ApiKey, ApiKeys, bearer_secret, is_loopback
from unseen.serve.http.bodies import idempotency_key, read_json, read_samples
from unseen.serve.http.events import EventHub, VerdictEvent
from unseen.serve.http.growth import GrowthWatch
from unseen.serve.http.log import RequestLog
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import Settings
from unseen.serve.stream.batch import SampleBatch, sample_batch
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.store import LocalStreams, StreamEntry, StreamStore
from unseen.serve.work.caller_limiter import Pace
from unseen.serve.work.encoding import ImageEncoder, RequiredEncoder, content_digest
from unseen.serve.work.fair_pool import RateLimiter
from unseen.serve.work.jobs import Jobs
from unseen.serve.work.shares import Shares
from unseen.serve.work.vocabulary import GroupWords

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
PICTURED = ',"pictured":true}'  # the end of an event whose samples have thumbnails
MESSAGE_SECONDS = 0.001  # between two messages of one owner over sockets, while others are active
AT_ONCE = 128 << 10  # bytes of features that are checked on the loop


class Service:
    """What all routes share."""

    def __init__(self, settings: Settings, store: StreamStore | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.store = store or LocalStreams(DataFolder(settings.data), settings)
        self.keys = ApiKeys(settings.data / "keys.json")
        self.events, self.rate = EventHub(self.limits.listeners), RateLimiter(self.limits.rate)
        self.metrics, self.jobs = Metrics(self.store.entries.values), Jobs(self.limits.jobs)
        self.encoder, self.log = ImageEncoder(settings.encoder, self.limits), RequestLog(settings.logs)
        self.words = GroupWords(self.encoder)
        self.growth = GrowthWatch(self.store, self.words, 60 * settings.group_minutes)
        self.activity = self.store.threads.activity
        self.pace = Pace(MESSAGE_SECONDS, self.activity)
        self.sockets = Shares(total=self.limits.connections, each=self.limits.sockets, what="sockets", code="listeners")
        self.store.on_commit = self.metrics.commit.observe

    def needs_key(self) -> bool:
        """Whether a key is needed: where others can reach the service, and from the first key on for good."""
        return self.settings.require_key or self.keys.needed or not is_loopback(self.settings.host)

    def key_of(self, scope: Scope) -> ApiKey | None:
        """The key a request carries, None where it has none that is valid."""
        try:
            return self.keys.check(bearer_secret(scope)) if scope.get(NEEDS_KEY, self.needs_key()) else LOCAL
        except ServiceError:
            return None

    def authorize(self, secret: str | None, scope: str) -> ApiKey:
        """The caller's key; refuse one that is missing, wrong or too weak."""
        if not self.needs_key():
            return LOCAL
        key = self.keys.check(secret)
        if not key.allows(scope):
            raise ServiceError(403, f"expected a key with scope {scope}, got {key.scope}; ask for another")
        return key

    def caller(self, request: Request, scope: str) -> ApiKey:
        """The key that a request was admitted with; refuse one that is missing, wrong or too weak."""
        key: ApiKey | None = request.scope.get(KEY)
        return key if key and key.allows(scope) else self.authorize(bearer_secret(request.scope), scope)

    def find(self, secret: str | None, id: str, scope: str) -> StreamEntry:
        """The stream with an id, if the caller's key may see it."""
        return self.store.find(id, self.authorize(secret, scope).owner)

    def may(self, secret: str | None, entry: StreamEntry, scope: str) -> bool:
        """Whether a caller may still use a stream: its key may have been revoked, the stream deleted."""
        try:
            return self.find(secret, entry.config.id, scope) is entry
        except ServiceError:
            return False

    async def run_chore(self, owner: str, work: Callable[[], T]) -> T:
        """Run what is slow and seldom away from the loop and from the writers, sharing fairly between owners."""
        return await asyncio.get_running_loop().run_in_executor(self.store.threads.chores.executor(owner), work)

    async def run_parser(self, owner: str, work: Callable[[], T]) -> T:
        """Parse or check what is large away from the loop, sharing fairly between owners."""
        return await asyncio.get_running_loop().run_in_executor(self.store.threads.parsers.executor(owner), work)

    async def read_json(self, request: Request, model: type[M], owner: str) -> M:
        """A body of JSON as `model`."""
        return await read_json(request, model, self.limits, self.store.threads.parsers.executor(owner))

    async def read_batch(self, request: Request, entry: StreamEntry) -> SampleBatch:
        """What a caller sent as checked features; images are encoded."""
        labels, owner = entry.opened.labels, entry.config.owner
        samples = await read_samples(request, labels.dim, self.limits, self.store.threads.parsers.executor(owner))
        self.rate.take(owner, len(samples))
        key = idempotency_key(request)
        if samples.features is not None:
            checked = partial(sample_batch, labels, samples.features, key, keys=samples.keys)
            return checked() if samples.features.nbytes <= AT_ONCE else await self.run_parser(owner, checked)
        z, thumbnails = await self.encoder.encode(owner, samples.images, RequiredEncoder.of(labels))
        digest = await self.run_parser(owner, partial(content_digest, samples.images))
        return sample_batch(labels, z, key, digest=digest, keys=samples.keys, thumbnails=thumbnails)

    async def observe(self, entry: StreamEntry, batch: SampleBatch) -> str:
        """Learn from a batch and return its verdicts as JSON, after telling listeners."""
        stream = entry.opened
        assert entry.observe is not None
        answer = await entry.observe(batch)
        if not answer.repeated:
            if batch.thumbnails:
                entry.keep_thumbnails(answer, batch.thumbnails)
            entry.keys.add(answer.first, batch.keys)
            if self.events.has_listeners(entry.config.id):
                event = answer.text[:-1] + PICTURED if batch.thumbnails else answer.text
                last = answer.first + len(answer.verdicts) - 1
                self.events.publish(entry.config.id, VerdictEvent(answer.first, last, event))
            self.store.snapshot_if_due(stream)
            self.growth.look(self.store.threads.chores.executor)
        return answer.text

    async def score(self, entry: StreamEntry, batch: SampleBatch) -> str:
        """The verdicts on a batch as JSON, without learning anything."""
        assert entry.score is not None
        return (await entry.score(batch)).text

    async def close(self) -> None:
        """Answer what waits, leave every stream with a fresh snapshot, and end all threads."""
        self.jobs.close()
        await self.store.idle()
        await asyncio.to_thread(self.encoder.close)
        await asyncio.to_thread(self.store.close)
        await asyncio.to_thread(self.log.close)
