"""The alarm on groups that grow fast: now and then the unknown samples of a stream are grouped in the background."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor

from unseen.errors import UnseenError
from unseen.serve.stream.groups import Words, stream_groups
from unseen.serve.stream.store import StreamEntry, StreamStore

ENOUGH = 64  # unknown samples since a stream was grouped last
SHARE = 0.01  # of one core that all of this may take

log = logging.getLogger("unseen.serve")


class GrowthWatch:
    """Groups one stream at a time: one that has waited long enough and has the most new unknown samples."""

    def __init__(self, store: StreamStore, words: Words, seconds: float) -> None:
        self._store, self._words, self._seconds = store, words, seconds
        self._due = time.monotonic() + seconds if seconds else math.inf
        self._grouped: dict[str, tuple[float, int]] = {}  # by stream: when, and how many unknown samples it had seen
        self._tasks: set[asyncio.Task[None]] = set()

    def look(self, executor: Callable[[str], Executor]) -> None:
        """Start to group a stream, if it is time; called whenever samples were observed."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._seconds / 10  # where no stream needs it
        if (entry := self._neediest(now)) is not None:
            self._due = math.inf
            task = asyncio.create_task(self._group(entry, executor(entry.config.owner)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _neediest(self, now: float) -> StreamEntry | None:
        waiting = []
        for entry in list(self._store.entries.values()):
            when, before = self._grouped.get(entry.config.id, (-math.inf, 0))
            more = _unknown(entry) - before if entry.stream else 0
            if now - when >= self._seconds and more >= ENOUGH:
                waiting.append((more, entry.config.id, entry))
        return max(waiting)[-1] if waiting else None

    async def _group(self, entry: StreamEntry, executor: Executor) -> None:
        started = time.monotonic()
        self._grouped[entry.config.id] = started, _unknown(entry)
        try:
            work = asyncio.get_running_loop().run_in_executor(executor, stream_groups, entry.opened, self._words)
            found = await work
        except (UnseenError, OSError) as error:  # deleted meanwhile, or the disk is full
            log.info("stream %s is not grouped: %s", entry.config.id, error)
        else:
            for one in found["groups"]:
                if one["growing"]:
                    log.warning("stream %s: group %s grows fast", entry.config.id, one["number"])
        finally:
            now = time.monotonic()
            self._due = now + (now - started) / SHARE


def _unknown(entry: StreamEntry) -> int:
    tally = entry.opened.readers.snapshot.tally
    return int(tally.seen - tally.known)
