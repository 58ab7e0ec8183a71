"""The store that computes its streams in this process."""

from unseen.detectors.base import BLOCK
from unseen.serve.stream.store import READY, StreamEntry, StreamStore
from unseen.serve.stream.stream import Stream
from unseen.serve.work.batcher import MicroBatcher


class LocalStreams(StreamStore):
    """Streams opened in this process, which share its threads."""

    def open(self, entry: StreamEntry) -> None:
        """Replay a stream."""
        config, settings = entry.config, self.settings
        stream = Stream(self.folder.streams / config.id, config, settings.durability)
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
