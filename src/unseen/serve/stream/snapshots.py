"""Snapshots of a stream on disk: which there are, and which a restart still needs."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from unseen import checkpoint
from unseen.errors import ServiceError, StateError
from unseen.serve.settings import INSIDE
from unseen.serve.stream.journal import Position
from unseen.session import Session
from unseen.storage.files import claimed_metadata

AUTO, KEPT, RESTORED, BEFORE, DAMAGED = "auto", "kept", "restored", "before", "damaged"

log = logging.getLogger("unseen.serve")


class SavedSnapshot(NamedTuple):
    """A snapshot on disk, named by the journal entry it covers."""

    kind: str
    entry: int
    path: Path

    @property
    def labels(self) -> str:
        """The fingerprint of the label space that the state needs; "" of a damaged file."""
        header = claimed_metadata(self.path).get("header", "{}")
        return str(json.loads(header).get("labels", ""))

    @property
    def digest(self) -> bytes:
        """A hash of the file."""
        return hashlib.blake2b(self.path.read_bytes(), digest_size=16).digest()

    def load(self, resume: Callable[[checkpoint.Checkpoint], Session]) -> tuple[Session, Position]:
        """The session that goes on from it, and its place in the journal."""
        found = checkpoint.load(self.path)
        at = Position(*found.identity.get("position", (-1, -1, "")))
        if at.entry != self.entry:
            raise StateError(f"expected a snapshot of entry {self.entry}, got one of {at.entry}; restore a copy")
        return resume(found), at


class SnapshotFolder:
    """The files KIND-ENTRY.safetensors of one folder."""

    def __init__(self, folder: Path, kept: int) -> None:
        self.folder, self._most_kept = folder, kept
        folder.mkdir(exist_ok=True)
        for torn in folder.glob(".*"):  # what a kill left half written
            if torn.is_file():
                torn.unlink()

    def slot(self, kind: str, entry: int) -> SavedSnapshot:
        """Where a snapshot of an entry belongs, whether it is there or not."""
        return SavedSnapshot(kind, entry, self.folder / f"{kind}-{entry:012d}.safetensors")

    def all(self, *kinds: str) -> list[SavedSnapshot]:
        """The snapshots on disk, oldest first; automatic ones and those taken by hand unless `kinds` says."""
        found = []
        for path in self.folder.glob("[!.]*.safetensors"):
            kind, _, entry = path.stem.partition("-")
            if kind in (kinds or (AUTO, KEPT)) and entry.isdecimal():
                found.append(SavedSnapshot(kind, int(entry), path))
        return sorted(found, key=lambda saved: saved.entry)

    def find(self, entry: int) -> SavedSnapshot:
        """The snapshot of an entry that a person may ask for."""
        for saved in self.all():
            if saved.entry == entry:
                return saved
        raise ServiceError(404, f"expected a snapshot of this stream, got {entry}; list them first")

    def newest(
        self, resume: Callable[[checkpoint.Checkpoint], Session], faults: list[str]
    ) -> tuple[Session, Position] | None:
        """The session of the newest sound snapshot and its place in the journal; others are set aside as faults."""
        for saved in reversed(self.all()):
            try:
                return saved.load(resume)
            except OSError:  # of the disk or of file handles; says nothing about the snapshot
                raise
            except Exception as error:  # an altered file may lead anywhere
                log.error("snapshot %s set aside: %s", saved.path.name, error)
                why = str(error).replace(f"{self.folder}/", "")  # the stream's owner reads it
                faults.append(f"{saved.path.name} was set aside: {why}")
                saved.path.rename(self.slot(DAMAGED, saved.entry).path)
                self._forget(DAMAGED, most=INSIDE.damaged)
        return None

    def tidy(self) -> int | None:
        """Delete what newer snapshots replace; the entry from which a restart needs the journal, where it is known."""
        self._forget(KEPT, most=self._most_kept)
        self._forget(BEFORE, most=INSIDE.undoable)
        self._forget(AUTO, most=INSIDE.autos)
        autos = self.all(AUTO)
        if len(autos) < INSIDE.autos:
            return None
        for restored in self.all(RESTORED):
            if restored.entry < autos[0].entry:
                restored.path.unlink(missing_ok=True)
        return autos[0].entry

    def _forget(self, kind: str, *, most: int) -> None:
        """Remove the oldest of a kind where there are too many."""
        for old in self.all(kind)[:-most]:
            old.path.unlink(missing_ok=True)
