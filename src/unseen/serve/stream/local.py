"""The store that computes its streams in this process."""

import logging

from unseen.detectors.base import BLOCK
from unseen.errors import StateError
from unseen.serve.stream.store import DAMAGED, READY, StreamEntry, StreamStore
from unseen.serve.stream.stream import Stream
from unseen.serve.work.batcher import MicroBatcher

log = logging.getLogger("unseen.serve")


class LocalStreams(StreamStore):
    """Streams opened in this process, which share its threads."""

    def open(self, entry: StreamEntry) -> None:
        """Replay a stream; one that cannot be trusted is marked damaged, the others go on."""
        config, settings = entry.config, self.settings
        try:
            stream = Stream(self.folder.streams / config.id, config, settings.durability)
        except StateError as error:
            log.error("stream %s refused: %s", config.id, error)
            entry.status, entry.reason = DAMAGED, str(error)
            return
        executor, queue = self.threads.writers.executor(config.owner), settings.limits.queue
        entry.observe = MicroBatcher(stream.observe, executor, block=BLOCK, queue=queue)
        entry.score = MicroBatcher(stream.score, executor, block=BLOCK, queue=queue)
        entry.stream, entry.status = stream, READY

    def release(self, entry: StreamEntry, *, is_deleted: bool) -> None:
        """Close the files of a stream."""
        if entry.stream and is_deleted:
            entry.stream.abandon()
        elif entry.stream:
            entry.stream.close()
