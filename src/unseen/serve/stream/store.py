"""The set of streams behind a service."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from unseen import LabelSpace, detectors
from unseen.detectors.base import BLOCK
from unseen.errors import ServiceError, StateError, UnseenError
from unseen.serve.settings import EVERYONE, Settings
from unseen.serve.stream.batch import BatchVerdicts, SampleBatch, with_texts
from unseen.serve.stream.config import StreamConfig, read_config
from unseen.serve.stream.disk import check_quota, expected_bytes, folder_bytes
from unseen.serve.stream.disk_errors import disk_is_full
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.history import (
    KEY_CHARACTERS,
    RECENT,
    THUMBNAIL,
    THUMBNAILS,
    UNKNOWN_THUMBNAILS,
    RecentItems,
)
from unseen.serve.stream.memory import check_names, state_bytes
from unseen.serve.stream.snapshots import AUTO
from unseen.serve.stream.stream import Stream
from unseen.serve.work.batcher import MicroBatcher
from unseen.serve.work.threads import Threads, thread_pool

log = logging.getLogger("unseen.serve")

OPENERS = 2 * len(os.sched_getaffinity(0))  # threads: opening computes and waits for the disk in turn
STOP_SECONDS = 4  # after which a stop takes no more snapshots
JOURNALS = 100  # whose files stay open, three each: those used last
SNAPSHOTS = 8  # at most a second, of the streams that would take longest to replay
READY, OPENING, WAITING, DAMAGED, REFUSED = "ready", "opening", "waiting", "damaged", "refused"


@dataclass
class StreamEntry:
    """A stream in a store: its status and, if this process computes it, the open stream."""

    config: StreamConfig
    status: str = OPENING
    reason: str = ""
    stream: Stream | None = None
    observe: MicroBatcher[SampleBatch, BatchVerdicts] | None = None
    score: MicroBatcher[SampleBatch, BatchVerdicts] | None = None
    thumbnails: RecentItems[bytes] = field(default_factory=partial(RecentItems, THUMBNAILS, THUMBNAILS * THUMBNAIL))
    unknown: RecentItems[bytes] = field(  # their thumbnails
        default_factory=partial(RecentItems, UNKNOWN_THUMBNAILS, UNKNOWN_THUMBNAILS * THUMBNAIL)
    )
    keys: RecentItems[str | None] = field(  # what callers call samples
        default_factory=partial(RecentItems, RECENT, KEY_CHARACTERS)
    )

    def keep_thumbnails(self, answer: BatchVerdicts, thumbnails: Sequence[bytes]) -> None:
        """Keep the thumbnails of the latest samples, and for longer those of the unknown ones."""
        self.thumbnails.add(answer.first, thumbnails)
        known = answer.verdicts["known"].tolist()
        numbered = enumerate(zip(thumbnails, known, strict=False), answer.first)
        self.unknown.add_some({seq: picture for seq, (picture, is_known) in numbered if not is_known})

    def thumbnail(self, seq: int) -> bytes | None:
        """The thumbnail of a sample, None where it is not kept."""
        return self.thumbnails.get(seq) or self.unknown.get(seq)

    @property
    def opened(self) -> Stream:
        """The open stream; say why there is none."""
        if self.stream is None:
            why = self.reason or "still being opened; try again in a moment"
            status = 507 if self.status == WAITING else 503
            raise ServiceError(
                status, f"expected a stream that is ready, got one that is {self.status}: {why}", self.status
            )
        return self.stream

    async def idle(self) -> None:
        """Wait until every request to the stream is answered."""
        for batcher in filter(None, (self.observe, self.score)):
            await batcher.idle()


class StreamStore:
    """All streams of a data folder, open in this process."""

    def __init__(self, folder: DataFolder, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self.threads = Threads(settings.compute)
        self.entries = {path.name: _entry(path) for path in folder.stream_folders()}
        self.stopping = False
        self.on_commit: Callable[[float], object] = lambda seconds: None  # told how long the disk took
        self.ready, self._retried, self._summed = False, 0.0, 0.0

    def open(self, entry: StreamEntry) -> None:
        """Replay a stream."""
        config, settings = entry.config, self.settings
        stream = Stream(self.folder.streams / config.id, config, settings.durability)
        stream.rest()
        stream.on_commit = lambda seconds: self.on_commit(seconds)
        executor, queue = self.threads.writers(config.owner), settings.limits.queue
        observe, score = (partial(with_texts, work) for work in (stream.observe, stream.score))
        entry.observe = MicroBatcher(observe, executor, block=BLOCK, queue=queue)
        entry.score = MicroBatcher(score, executor, block=BLOCK, queue=queue)
        entry.stream, entry.status = stream, READY

    def release(self, entry: StreamEntry, *, is_deleted: bool) -> None:
        """Close the files of a stream."""
        if entry.stream and is_deleted:
            entry.stream.abandon()
        elif entry.stream:
            entry.stream.close()

    def open_all(self) -> None:
        """Open every stream that can be read, several at a time; one that fails concerns no other."""
        with thread_pool(OPENERS, "open", compute=self.settings.compute) as pool:
            list(pool.map(self._try_open, [entry for entry in self.entries.values() if entry.status == OPENING]))
        self.ready = True

    def _try_open(self, entry: StreamEntry) -> None:
        if self.stopping:
            return
        try:
            self.open(entry)
        except OSError as error:
            self._wait(entry, disk_is_full(error))
        except ServiceError as error:
            self._wait(entry, error)
        except UnseenError as error:
            log.error("stream %s refused: %s", entry.config.id, error)
            entry.status, entry.reason = DAMAGED, self._without_path(error)
        except Exception as error:  # whatever it is, the other streams go on
            log.exception("stream %s refused", entry.config.id)
            what = type(error).__name__
            entry.status, entry.reason = DAMAGED, f"expected a stream that opens, got {what}; the log says where"

    def _wait(self, entry: StreamEntry, error: ServiceError) -> None:
        if entry.status != WAITING:
            log.error("stream %s waits: %s", entry.config.id, error)
        entry.status, entry.reason = WAITING, self._without_path(error)

    def _without_path(self, error: Exception) -> str:
        """Why a stream is not open, without saying where on our disk it lies: its owner reads this."""
        return str(error).replace(f"{self.folder.streams}/", "")

    def retry(self) -> None:
        """Let the keeper thread open streams that wait for room on the disk, at most once a second."""
        waiting = [entry for entry in self.entries.values() if entry.status == WAITING]
        if waiting and self.ready and time.monotonic() - self._retried > 1:
            self._retried = time.monotonic()
            for entry in waiting:
                self.threads.keeper.submit(self._try_open, entry)

    def create(self, labels: LabelSpace, wanted: StreamConfig) -> StreamEntry:
        """Make and open a stream; refuse one that is too many for its owner or that could not work."""
        limits, most = self.settings.limits, self.settings.limits.streams
        check_names(labels, limits)
        if sum(entry.config.owner == wanted.owner for entry in self.entries.values()) >= most:
            raise ServiceError(409, f"expected at most {most} streams, got one more; delete one first", "streams")
        wanted = replace(wanted, detector=detectors.find(wanted.detector).name)
        self._check_memory(labels, wanted)
        self.check_disk(wanted.owner, expected_bytes(labels, state_bytes(wanted, labels), self.settings.durability))
        wanted.check(labels)
        config = self.folder.add_stream(labels, wanted)
        entry = self.entries[config.id] = StreamEntry(config)
        self._try_open(entry)
        return entry

    def _check_memory(self, labels: LabelSpace, wanted: StreamConfig) -> None:
        """Refuse a stream whose state would not fit beside those there are, before anything of it is made."""
        limits, size = self.settings.limits, state_bytes(wanted, labels)
        taken = Counter[str]()
        for entry in list(self.entries.values()):
            taken[entry.config.owner] += entry.stream.memory if entry.stream else 0
        for what, before, most in (
            ("your streams", taken[wanted.owner], limits.memory_each),
            ("all streams", taken.total(), limits.memory),
        ):
            if before + size > most:
                raise ServiceError(
                    413,
                    f"expected {what} to take at most {most:,} bytes, got {before:,} and {size:,} for a new one; "
                    "choose smaller settings or delete a stream",
                    "memory",
                )

    def check_disk(self, owner: str, more: int) -> None:
        """Refuse what would take an owner over its share of the disk, by what its streams may come to or have."""
        owned = [entry for entry in list(self.entries.values()) if entry.config.owner == owner and entry.stream]
        taken = sum(max(entry.opened.expected_disk, folder_bytes(entry.opened.folder)) for entry in owned)
        check_quota(taken, more, self.settings.limits)

    def delete(self, entry: StreamEntry) -> None:
        """Remove a stream and everything it learned."""
        if self.entries.pop(entry.config.id, None) is None:
            raise ServiceError(404, "expected a stream, got one that was deleted; list them first")
        self.release(entry, is_deleted=True)
        self.folder.remove_stream(entry.config.id)

    def owned(self, owner: str) -> Iterator[StreamEntry]:
        """Yield the streams one owner may see; the operator `*` sees all."""
        self.retry()
        return (entry for entry in list(self.entries.values()) if owner in (EVERYONE, entry.config.owner))

    def find(self, id: str, owner: str) -> StreamEntry:
        """One stream; to others than its owner it does not exist."""
        self.retry()
        entry = self.entries.get(id)
        if entry is None or owner not in (EVERYONE, entry.config.owner):
            raise ServiceError(404, "expected the id of one of your streams, got another; list them first")
        return entry

    def snapshot_if_due(self, stream: Stream) -> None:
        """Let the keeper thread take snapshots that are due, by samples or by the time a restart would take."""
        if stream.snapshot_due:
            self._queue_snapshot(stream)
        now = time.monotonic()
        if now - self._summed > 1:
            self._summed = now
            self.threads.keeper.submit(self._rest)
            for costly in self._costly_streams():
                self._queue_snapshot(costly)

    def _costly_streams(self) -> list[Stream]:
        """The few streams, costliest first, whose snapshots bring a restart back under its time."""
        streams = [entry.stream for entry in list(self.entries.values()) if entry.stream]
        streams.sort(key=lambda stream: stream.replay_seconds, reverse=True)
        excess = sum(stream.replay_seconds for stream in streams) - self.settings.durability.replay_seconds
        found: list[Stream] = []
        for stream in streams[:SNAPSHOTS]:
            if excess <= 0:
                break
            excess -= stream.replay_seconds
            found.append(stream)
        return found

    def _rest(self) -> None:
        """Close the files of the journals that were used least lately, so that few hold any."""
        holding = [entry.stream for entry in list(self.entries.values()) if entry.stream and entry.stream.holds_files]
        for stream in sorted(holding, key=lambda stream: stream.used)[:-JOURNALS]:
            stream.rest()

    def _queue_snapshot(self, stream: Stream) -> None:
        if not stream.snapshot_queued:
            stream.snapshot_queued = True
            self.threads.keeper.submit(_snapshot, stream)

    async def idle(self) -> None:
        """Wait until every request to any stream is answered."""
        for entry in list(self.entries.values()):
            await entry.idle()

    def close(self) -> None:
        """Finish the work in the threads, leave every stream with a fresh snapshot, and release the folder."""
        self.stopping, deadline = True, time.monotonic() + STOP_SECONDS
        self.threads.close()
        for entry in self.entries.values():  # without a snapshot the next start replays, and nothing is lost
            self.release(entry, is_deleted=time.monotonic() > deadline)
        self.folder.close()


def _entry(folder: Path) -> StreamEntry:
    try:
        config = read_config(folder)
    except StateError as error:
        return StreamEntry(StreamConfig(folder.name, "", EVERYONE, ""), DAMAGED, str(error))
    if config.id != folder.name:  # two that write to one journal would spoil it
        reason = f"expected the stream {folder.name} in its folder, got {config.id}; remove the copy or the link"
        return StreamEntry(StreamConfig(folder.name, "", EVERYONE, ""), REFUSED, reason)
    return StreamEntry(config, REFUSED if config.refusal else OPENING, config.refusal)


def _snapshot(stream: Stream) -> None:
    try:
        stream.snapshot(AUTO)
    except OSError as error:  # the journal still has everything: say so and try again later
        stream.faults.append(f"no snapshot: {error}")
        log.error("no snapshot of %s: %s", stream.config.id, error)
    finally:
        stream.snapshot_queued = False
