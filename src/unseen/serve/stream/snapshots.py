"""Snapshots of a stream on disk: which there are, and which a restart still needs."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unseen.errors import ServiceError
from unseen.serve.stream.journal import Position, Retention
from unseen.storage.files import claimed_metadata

AUTO, KEPT, RESTORED, BEFORE, DAMAGED = "auto", "kept", "restored", "before", "damaged"
UNDOABLE = 8  # edits of names whose states of before are kept
MOST_DAMAGED = 4  # set aside; the oldest make room
STEPS = 4  # parts of the retained samples that have a snapshot each, to go back to any moment in them
AUTOS = 2  # automatic snapshots on disk: the older one serves when the newer one is damaged


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
    def seq(self) -> int:
        """How many samples the state has seen; 0 of a damaged file."""
        header = claimed_metadata(self.path).get("header", "{}")
        return int(json.loads(header).get("position", (0, 0))[1])

    @property
    def digest(self) -> bytes:
        """A hash of the file."""
        return hashlib.blake2b(self.path.read_bytes(), digest_size=16).digest()


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

    def find(self, entry: int, *kinds: str) -> SavedSnapshot:
        """The snapshot of an entry."""
        for saved in self.all(*kinds):
            if saved.entry == entry:
                return saved
        raise ServiceError(404, f"expected a snapshot of this stream, got {entry}; list them first")

    def forget_kept(self) -> None:
        """Remove the oldest snapshots taken by hand where there are too many."""
        for old in self.all(KEPT)[: -self._most_kept]:
            old.path.unlink()

    def forget_before(self) -> None:
        """Remove the states of before edits that are too long ago to be undone."""
        for old in self.all(BEFORE)[:-UNDOABLE]:
            old.path.unlink()

    def set_aside(self, saved: SavedSnapshot) -> None:
        """Rename a snapshot that cannot be read, so that it is neither used nor lost."""
        saved.path.rename(self.slot(DAMAGED, saved.entry).path)
        for old in self.all(DAMAGED)[:-MOST_DAMAGED]:
            old.path.unlink()

    def rotate(self, at: Position, *, retain: int, receipts: int) -> Retention | None:
        """Delete what newer snapshots replace; return what the journal may drop after this."""
        autos = self.all(AUTO)
        needed = needed_autos(autos, at.seq - retain, apart=retain // STEPS)
        for old in autos:
            if old not in needed:
                old.path.unlink()
        if len(autos) < AUTOS:
            return None
        oldest = needed[0].entry
        for restored in self.all(RESTORED):
            if restored.entry < oldest:
                restored.path.unlink()
        return Retention(oldest, at.seq - retain, receipts)


def needed_autos(autos: Sequence[SavedSnapshot], since: int, *, apart: int) -> list[SavedSnapshot]:
    """The last AUTOS snapshots and older ones `apart` samples from each other, back to one before `since`."""
    spaced: list[SavedSnapshot] = []
    for saved in autos[:-AUTOS]:
        if not spaced or saved.seq - spaced[-1].seq >= apart:
            spaced.append(saved)
    newest = list(autos[-AUTOS:])
    first = max((place for place, saved in enumerate([*spaced, *newest[:1]]) if saved.seq <= since), default=0)
    return [*spaced, *newest][first:]
