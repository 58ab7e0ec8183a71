"""The one actor that knows all streams: it makes, lists and deletes them, and starts their writers."""

import asyncio
from typing import Any

import torch

from unseen.scale import cluster
from unseen.scale.serve.placement import LOCK_SECONDS, Placement, wait_for_lock
from unseen.scale.serve.transport import AppActor
from unseen.scale.serve.writer import Writer
from unseen.serve.http.service import Service
from unseen.serve.stream.folder import DataFolder
from unseen.serve.stream.store import READY, StreamEntry, StreamStore


class RemoteStreams(StreamStore):
    """All streams of a data folder, each opened by an actor of its own."""

    def __init__(self, folder: DataFolder, ray: Any, placement: Placement) -> None:
        super().__init__(folder, placement.settings)
        self.ray, self.placement = ray, placement

    def open(self, entry: StreamEntry) -> None:
        """Start a stream's writer, unless it is there."""
        self.placement.actor(self.ray, entry.config.id, Writer).remote(self.placement, entry.config.id)
        entry.status = READY

    def release(self, entry: StreamEntry, *, is_deleted: bool) -> None:
        """End a stream's writer for good, after a last snapshot."""
        try:
            writer = self.placement.find(self.ray, entry.config.id)
            self.ray.get(writer.close.remote(), timeout=LOCK_SECONDS)
            self.ray.kill(writer)
        except (ValueError, self.ray.exceptions.RayError):
            return  # it was not there, or died before it could be ended: the journal has everything

    def revive(self, id: str) -> bool:
        """Start a writer that has ended for good; return whether the stream exists."""
        entry = self.entries.get(id)
        if entry is None or entry.status != READY:
            return False
        self.open(entry)
        return True


class Directory(AppActor):
    """The actor that knows all streams."""

    def __init__(self, placement: Placement) -> None:
        torch.set_num_threads(placement.threads)
        folder = wait_for_lock(lambda: DataFolder(placement.settings.data))
        self.streams = RemoteStreams(folder, cluster.module(), placement)
        super().__init__(Service(placement.settings, self.streams))

    async def revive(self, id: str) -> bool:
        """Start a writer that has ended for good; return whether the stream exists."""
        return await asyncio.to_thread(self.streams.revive, id)
