"""All streams of a data folder: made whole or not at all, opened after a start, deleted without a trace.

DATA/lock                       held by the one process that may write here
DATA/keys.json                  API keys, hashed
DATA/spaces/NAME.safetensors    label spaces that an operator offers by name
DATA/streams/ID/                stream.json, space.safetensors, journal.db, snapshots/
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from prometheus_client import Counter

from unseen import LabelSpace, detectors
from unseen.detectors.base import BLOCK
from unseen.errors import ServiceError, StateError
from unseen.serve.gather import Gather
from unseen.serve.limits import Limits
from unseen.serve.pictures import Pictures
from unseen.serve.stream import AUTO, Answer, Config, Durability, Part, Stream, read_config, write_config
from unseen.serve.turns import Turns, threads
from unseen.storage.files import sync_folder

DEFAULT = detectors.DEFAULT
READY, OPENING, BROKEN = "ready", "opening", "damaged"

log = logging.getLogger("unseen.serve")


@dataclass
class Slot:
    """A stream's place: the stream itself, or why there is none."""

    config: Config
    status: str = OPENING
    reason: str = ""
    stream: Stream | None = None
    observe: Gather[Part, Answer] | None = None
    score: Gather[Part, Answer] | None = None
    pictures: Pictures = field(default_factory=Pictures)
    counters: list[Counter] | None = None


class Streams:
    """Every stream of one folder, and the threads they share."""

    def __init__(
        self, data: Path, *, limits: Limits | None = None, durability: Durability | None = None, compute: int = 1
    ) -> None:
        self.data, self.limits, self.durability = data, limits or Limits(), durability or Durability()
        self.slots: dict[str, Slot] = {}
        self.ready = False
        (data / "streams").mkdir(parents=True, exist_ok=True)
        (data / "spaces").mkdir(exist_ok=True)
        self._lock = alone(data / "lock")
        self.hire(compute)
        self._swept()

    def hire(self, compute: int) -> None:
        """Start the threads; all compute alike: a stream is replayed by another thread than the one that learned."""
        self.writers = Turns(max(2, len(os.sched_getaffinity(0))), "writer", compute=compute)
        self.chores = Turns(2, "chores", compute=compute)
        self.keeper = threads(1, "keeper", compute=compute)  # opens streams and takes snapshots

    def dismiss(self) -> None:
        """End the threads once they have finished what is at work."""
        self.writers.close()
        self.chores.close()
        self.keeper.shutdown()

    def open_all(self) -> None:
        """Bring every stream back to where it was; one that cannot be trusted is refused, the others go on."""
        for slot in list(self.slots.values()):
            self._open(slot)
        self.ready = True

    def create(self, labels: LabelSpace, wanted: Config) -> Slot:
        """Make a stream whose id is ours, never the caller's."""
        if len(list(self.owned(wanted.owner))) >= self.limits.streams:
            raise ServiceError(409, f"expected at most {self.limits.streams} streams, got one more; delete one first")
        wanted.check(labels)
        config = replace(wanted, id=secrets.token_hex(8), created=datetime.now(UTC).isoformat(timespec="seconds"))
        half, whole = (self.data / "streams" / f"{prefix}{config.id}" for prefix in (".new-", ""))
        half.mkdir()
        try:
            labels.save(half / "space.safetensors")
            write_config(half, config)
            half.rename(whole)
            sync_folder(whole.parent)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise ServiceError(507, f"expected room for a stream, got {error}; free some space") from error
        slot = self.slots[config.id] = Slot(config)
        self._open(slot)
        return slot

    def delete(self, slot: Slot) -> None:
        """Remove a stream and everything it learned."""
        del self.slots[slot.config.id]
        if slot.stream:
            slot.stream.leave()
        folder = self.data / "streams" / slot.config.id
        gone = folder.with_name(f".old-{folder.name}")
        folder.rename(gone)
        shutil.rmtree(gone)

    def owned(self, owner: str) -> Iterator[Slot]:
        """Yield the streams one owner may see; the operator `*` sees all."""
        return (slot for slot in self.slots.values() if owner in ("*", slot.config.owner))

    def find(self, key: str, owner: str) -> Slot:
        """Return one stream; to others than its owner it does not exist."""
        slot = self.slots.get(key)
        if slot is None or owner not in ("*", slot.config.owner):
            raise ServiceError(404, "expected the id of one of your streams, got another; list them first")
        return slot

    def space(self, name: str) -> LabelSpace:
        """Return a label space that the operator put into the data folder."""
        offered = {path.stem: path for path in (self.data / "spaces").glob("*.safetensors")}
        if name not in offered:
            raise ServiceError(422, f"expected a label space out of {sorted(offered)}, got {name!r}; check the name")
        return LabelSpace.load(offered[name])

    def snapshot_due(self, stream: Stream) -> None:
        """Let the keeper take a snapshot when one is due; the writer does not wait for it."""
        if stream.due and not stream.queued:
            stream.queued = True
            self.keeper.submit(self._snapshot, stream)

    def close(self) -> None:
        """Finish what is at work and leave every stream with a fresh snapshot."""
        self.dismiss()
        for slot in self.slots.values():
            if slot.stream:
                slot.stream.close()
        self._lock.close()

    def _open(self, slot: Slot) -> None:
        try:
            stream = Stream(self.data / "streams" / slot.config.id, slot.config, self.durability)
        except StateError as error:
            log.error("stream %s refused: %s", slot.config.id, error)
            slot.status, slot.reason = BROKEN, str(error)
            return
        turn = self.writers.of(slot.config.owner)
        slot.observe = Gather(stream.observe, turn, block=BLOCK, queue=self.limits.queue)
        slot.score = Gather(stream.score, turn, block=BLOCK, queue=self.limits.queue)
        slot.stream, slot.status = stream, READY

    def _snapshot(self, stream: Stream) -> None:
        try:
            stream.snapshot(AUTO)
        except OSError as error:  # the journal still has everything: say so and try again later
            stream.faults.append(f"no snapshot: {error}")
            log.error("no snapshot of %s: %s", stream.config.id, error)
        finally:
            stream.queued = False

    def _swept(self) -> None:
        for folder in (self.data / "streams").iterdir():
            if not re.fullmatch("[0-9a-f]{16}", folder.name):
                if folder.name.startswith((".new-", ".old-")):
                    shutil.rmtree(folder)
                continue
            for torn in (folder / "snapshots").glob(".*"):
                torn.unlink()
            try:
                self.slots[folder.name] = Slot(read_config(folder))
            except StateError as error:
                unknown = Config(folder.name, "", "*", "")
                self.slots[folder.name] = Slot(unknown, BROKEN, str(error))


def opened(slot: Slot) -> Stream:
    """Return the stream in a slot; say why there is none."""
    if slot.stream is None:
        why = slot.reason or "still being opened; try again in a moment"
        raise ServiceError(503, f"expected a stream that is ready, got one that is {slot.status}: {why}")
    return slot.stream


def alone(path: Path) -> IO[str]:
    """Return the lock of a folder, held until it is closed; refuse one that another process holds."""
    handle = path.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise StateError(
            f"expected to be the only service on {path.parent}, got another; stop it or choose another --data"
        ) from error
    return handle
