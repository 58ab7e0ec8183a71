"""The set of streams behind a service."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from unseen import LabelSpace, detectors
from unseen.detectors.base import BLOCK
from unseen.errors import ServiceError, StateError, UnseenError
from unseen.serve.settings import EVERYONE, PAGE, Settings
from unseen.serve.stream.batch import BatchVerdicts, SampleBatch, with_texts
from unseen.serve.stream.disk import check_names, disk_is_full, session_bytes, state_bytes
from unseen.serve.stream.folder import DataFolder, StreamConfig, read_config
from unseen.serve.stream.history import RecentItems
from unseen.serve.stream.stream import Stream
from unseen.serve.work.threads import MicroBatcher, Threads, thread_pool

log = logging.getLogger("unseen.serve")

Status = Literal["ready", "opening", "waiting", "damaged", "refused"]


@dataclass
class StreamEntry:
    """A stream in a store: its status and, if it is open, what samples go through and what came with them."""

    config: StreamConfig
    status: Status = "opening"
    reason: str = ""
    stream: Stream | None = None
    observe: MicroBatcher[SampleBatch, BatchVerdicts] | None = None
    score: MicroBatcher[SampleBatch, BatchVerdicts] | None = None
    thumbnails: RecentItems[bytes] = field(default_factory=partial(RecentItems, 256, 1 << 20))
    unknown: RecentItems[bytes] = field(default_factory=partial(RecentItems, 512, 2 << 20))  # their thumbnails
    keys: RecentItems[str | None] = field(default_factory=partial(RecentItems, PAGE.recent, 1 << 18))

    listeners: set[asyncio.Event] = field(default_factory=set)  # of those who hear of its verdicts

    def keep(self, answer: BatchVerdicts, batch: SampleBatch) -> None:
        """Keep what the latest samples are called, their thumbnails, and for longer those of the unknown ones."""
        self.keys.add(dict(enumerate(batch.keys, answer.first)))
        thumbnails = dict(enumerate(batch.thumbnails, answer.first))
        self.thumbnails.add(thumbnails)
        known = answer.verdicts["known"].tolist()
        self.unknown.add({seq: one for seq, one in thumbnails.items() if not known[seq - answer.first]})
        self.wake()

    def wake(self) -> None:
        """Let the listeners look what is new, or whether the stream is still there."""
        for listener in self.listeners:
            listener.set()

    def thumbnail(self, seq: int) -> bytes | None:
        """The thumbnail of a sample, None where it is not kept."""
        return self.thumbnails.get(seq) or self.unknown.get(seq)

    @property
    def opened(self) -> Stream:
        """The open stream; say why there is none."""
        if self.stream is None:
            why = self.reason or "still being opened; try again in a moment"
            what = f"expected a stream that is ready, got one that is {self.status}: {why}"
            raise ServiceError(507 if self.status == "waiting" else 503, what, self.status)
        return self.stream


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
        stream.on_commit = self.on_commit
        executor, queue = self.threads.writers(config.owner), settings.limits.queue
        observe, score = (partial(with_texts, work) for work in (stream.observe, stream.score))
        entry.observe = MicroBatcher(observe, executor, block=BLOCK, queue=queue)
        entry.score = MicroBatcher(score, executor, block=BLOCK, queue=queue)
        entry.stream, entry.status = stream, "ready"

    def open_all(self) -> None:
        """Open every stream that can be read, several at a time; one that fails concerns no other."""
        # opening computes and waits for the disk in turn
        with thread_pool(2 * len(os.sched_getaffinity(0)), "open", compute=self.settings.compute) as pool:
            list(pool.map(self._try_open, [entry for entry in self.entries.values() if entry.status == "opening"]))
        self.ready = True

    def _try_open(self, entry: StreamEntry) -> None:
        if self.stopping:
            return
        try:
            self.open(entry)
        except (OSError, ServiceError) as error:
            refused = error if isinstance(error, ServiceError) else disk_is_full(error)
            if entry.status != "waiting":
                log.error("stream %s waits: %s", entry.config.id, refused)
            entry.status, entry.reason = "waiting", self._without_path(refused)
        except Exception as error:  # whatever it is, the other streams go on
            is_told = isinstance(error, UnseenError)
            log.error("stream %s refused: %s", entry.config.id, error, exc_info=not is_told)
            what = f"expected a stream that opens, got {type(error).__name__}; the log says where"
            entry.status, entry.reason = "damaged", self._without_path(error) if is_told else what

    def _without_path(self, error: Exception) -> str:
        """Why a stream is not open, without saying where on our disk it lies: its owner reads this."""
        return str(error).replace(f"{self.folder.streams}/", "")

    def _retry(self) -> None:
        """Let the keeper thread open streams that wait for room on the disk, at most once a second."""
        if self.ready and time.monotonic() - self._retried > 1:
            self._retried = time.monotonic()
            for entry in self.entries.values():
                if entry.status == "waiting":
                    self.threads.keeper.submit(self._try_open, entry)

    def create(self, labels: LabelSpace, wanted: StreamConfig) -> StreamEntry:
        """Make and open a stream; refuse one that is too many for its owner or that could not work."""
        limits, most = self.settings.limits, self.settings.limits.streams
        check_names(labels, limits)
        if sum(entry.config.owner == wanted.owner for entry in self.entries.values()) >= most:
            raise ServiceError(409, f"expected at most {most} streams, got one more; delete one first", "streams")
        wanted = replace(wanted, detector=detectors.find(wanted.detector).name)
        self._check_memory(wanted.owner, state_bytes(wanted, labels))
        wanted.check(labels)
        config = self.folder.add_stream(labels, wanted)
        entry = self.entries[config.id] = StreamEntry(config)
        self._try_open(entry)
        return entry

    def _check_memory(self, owner: str, size: int) -> None:
        """Refuse a stream whose state would not fit beside those there are, before anything of it is made."""
        limits, taken = self.settings.limits, Counter[str]()
        for entry in list(self.entries.values()):
            taken[entry.config.owner] += session_bytes(entry.stream.readers) if entry.stream else 0
        for what, before, most in (
            ("your streams", taken[owner], limits.memory_each),
            ("all streams", taken.total(), limits.memory),
        ):
            if before + size > most:
                what = f"expected {what} to take at most {most:,} bytes, got {before:,} and {size:,} for a new one"
                raise ServiceError(413, f"{what}; choose smaller settings or delete a stream", "memory")

    def delete(self, entry: StreamEntry) -> None:
        """Remove a stream and everything it learned."""
        if self.entries.pop(entry.config.id, None) is None:
            raise ServiceError(404, "expected a stream, got one that was deleted; list them first")
        if entry.stream:
            entry.stream.abandon()
        self.folder.remove_stream(entry.config.id)

    def owned(self, owner: str) -> Iterator[StreamEntry]:
        """Yield the streams one owner may see; the operator `*` sees all."""
        self._retry()
        return (entry for entry in list(self.entries.values()) if owner in (EVERYONE, entry.config.owner))

    def find(self, id: str, owner: str) -> StreamEntry:
        """One stream; to others than its owner it does not exist."""
        entry = self.entries.get(id)
        if entry is None or owner not in (EVERYONE, entry.config.owner):
            raise ServiceError(404, "expected the id of one of your streams, got another; list them first")
        if entry.status == "waiting":
            self._retry()
        return entry

    def snapshot_if_due(self, stream: Stream) -> None:
        """Let the keeper thread take snapshots that are due, by samples or by the time a restart would take."""
        due = [stream] if stream.at.seq - stream.snapshotted >= stream.durability.every else []
        if time.monotonic() - self._summed > 1:
            self._summed = time.monotonic()
            due += self._costly_streams()
        for one in due:
            if not one.snapshot_queued:
                one.snapshot_queued = True
                self.threads.keeper.submit(_snapshot, one)

    def _costly_streams(self) -> Sequence[Stream]:
        """The few streams, costliest first, whose snapshots bring a restart back under its time."""
        streams = [entry.stream for entry in list(self.entries.values()) if entry.stream]
        streams.sort(key=lambda stream: stream.replay_seconds, reverse=True)
        excess = sum(stream.replay_seconds for stream in streams) - self.settings.durability.replay_seconds
        count = 0
        while excess > 0 and count < min(len(streams), 8):
            excess -= streams[count].replay_seconds
            count += 1
        return streams[:count]

    def close(self) -> None:
        """Finish the work in the threads, leave every stream with a fresh snapshot, and release the folder."""
        self.stopping, deadline = True, time.monotonic() + self.settings.durability.stop_seconds
        self.threads.close()
        for stream in filter(None, (entry.stream for entry in self.entries.values())):
            if time.monotonic() < deadline:
                stream.close()
            else:  # the next start replays, and nothing is lost
                stream.abandon()
        self.folder.close()


def _entry(folder: Path) -> StreamEntry:
    try:
        config = read_config(folder)
    except StateError as error:
        return StreamEntry(StreamConfig(folder.name, "", EVERYONE, ""), "damaged", str(error))
    if config.id == folder.name:
        return StreamEntry(config, "refused" if config.refusal else "opening", config.refusal)
    # two that write to one journal would spoil it
    reason = f"expected the stream {folder.name} in its folder, got {config.id}; remove the copy or the link"
    return StreamEntry(StreamConfig(folder.name, "", EVERYONE, ""), "refused", reason)


def _snapshot(stream: Stream) -> None:
    try:
        stream.snapshot("auto")
    except OSError as error:  # the journal still has everything: say so and try again later
        stream.faults.append(f"no snapshot: {error}")
        log.error("no snapshot of %s: %s", stream.config.id, error)
    finally:
        stream.snapshot_queued = False
