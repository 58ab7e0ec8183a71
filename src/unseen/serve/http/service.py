"""What all routes share: streams, keys, limits, the encoder, listeners and counters."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from fastapi import Request
from starlette.types import Scope

from unseen.errors import ServiceError
from unseen.serve.http.auth import LOCAL, ApiKey, ApiKeys, bearer_secret
from unseen.serve.http.bodies import idempotency_key, read_samples
from unseen.serve.http.events import EventHub, VerdictEvent
from unseen.serve.http.growth import GrowthWatch
from unseen.serve.http.log import RequestLog
from unseen.serve.http.metrics import Metrics
from unseen.serve.settings import Settings
from unseen.serve.stream.batch import SampleBatch, sample_batch
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.store import StreamEntry, StreamStore
from unseen.serve.work.encoding import ImageEncoder, RequiredEncoder, content_digest
from unseen.serve.work.jobs import Jobs
from unseen.serve.work.threads import RateLimiter
from unseen.serve.work.vocabulary import GroupWords

T = TypeVar("T")
AT_ONCE = 128 << 10  # bytes of features that are checked on the loop


class Service:
    """What all routes share."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.store = StreamStore(DataFolder(settings.data), settings)
        self.keys = ApiKeys(settings.data)
        self.events, self.rate = EventHub(self.limits.listeners), RateLimiter(self.limits.rate)
        self.metrics, self.jobs = Metrics(self.store.entries.values), Jobs(self.limits.jobs)
        self.encoder, self.log = ImageEncoder(settings.encoder, self.limits), RequestLog(settings.logs)
        self.words = GroupWords(self.encoder)
        self.growth = GrowthWatch(self.store, self.words, 60 * settings.group_minutes)
        self.downloads = Counter[str]()  # that are made or sent, by owner
        self.store.on_commit = self.metrics.commit.observe

    def needs_key(self) -> bool:
        """Whether a key is needed: behind a proxy, and from the first key on for good."""
        return self.settings.behind_proxy or self.keys.needed

    def key_of(self, scope: Scope, *, needed: bool) -> ApiKey:
        """The key a request carries; refuse one that is missing, wrong or expired."""
        return self.keys.check(bearer_secret(scope)) if needed else LOCAL

    def may(self, scope: Scope, entry: StreamEntry) -> bool:
        """Whether a caller may still read a stream: its key may have been revoked, the stream deleted."""
        try:
            return self.store.find(entry.config.id, self.key_of(scope, needed=self.needs_key()).owner) is entry
        except ServiceError:
            return False

    async def run_chore(self, owner: str, work: Callable[[], T]) -> T:
        """Run what is slow and seldom away from the loop and from the writers."""
        return await self._run(self.store.threads.chores(owner), work)

    async def run_download(self, owner: str, work: Callable[[], T]) -> T:
        """Write a file that an owner downloads."""
        return await self._run(self.store.threads.downloads(owner), work)

    async def run_parser(self, owner: str, work: Callable[[], T]) -> T:
        """Parse or check what is large away from the loop."""
        return await self._run(self.store.threads.writers(owner), work)

    async def _run(self, executor: Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    async def read_batch(self, request: Request, entry: StreamEntry) -> SampleBatch:
        """What a caller sent as checked features; images are encoded, and those that cannot be read are skipped."""
        labels, owner = entry.opened.labels, entry.config.owner
        samples = await read_samples(request, labels.dim, self.limits, partial(self.run_parser, owner))
        self.rate.take(owner, len(samples))
        key = idempotency_key(request)
        if samples.features is not None:
            checked = partial(sample_batch, labels, samples.features, key, keys=samples.keys)
            return checked() if samples.features.nbytes <= AT_ONCE else await self.run_parser(owner, checked)
        names = samples.keys or [None] * len(samples)
        encoded = await self.encoder.encode(owner, samples.images, names, RequiredEncoder.of(labels))
        digest = await self.run_parser(owner, partial(content_digest, samples.images))
        keys = [names[place] for place in encoded.places] if samples.keys else ()
        found = sample_batch(labels, encoded.z, key, digest=digest, keys=keys, thumbnails=encoded.thumbnails)
        return found.without(encoded.skipped)

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
                last = answer.first + len(answer.verdicts) - 1
                self.events.publish(entry.config.id, VerdictEvent(answer.first, last, answer.text))
            self.store.snapshot_if_due(stream)
            self.growth.look(self.store.threads.chores)
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
