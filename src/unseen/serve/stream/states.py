"""What of a stream lies on disk beside its journal: states, and the label spaces that they are over.

STREAM/snapshots/KIND-ENTRY.safetensors  states, each named by the journal entry it covers
STREAM/space.safetensors                 the label space that the stream was created with
STREAM/spaces/FINGERPRINT.safetensors    others that edits of its names made, as long as a state needs them
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

import torch

from unseen import LabelSpace, checkpoint
from unseen.errors import ServiceError, StateError
from unseen.serve.settings import INSIDE
from unseen.serve.stream.journal import Position
from unseen.session import Session
from unseen.storage.files import claimed_metadata, content_mark

# taken by itself, by hand, given by a restore or an edit, of before an edit, and one that could not be read
Kind = Literal["auto", "kept", "restored", "before", "damaged"]

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
            if kind in (kinds or ("auto", "kept")) and entry.isdecimal():
                found.append(SavedSnapshot(kind, int(entry), path))
        return sorted(found, key=lambda saved: saved.entry)

    def find(self, entry: int) -> SavedSnapshot:
        """The snapshot of an entry that a person may ask for."""
        if found := [saved for saved in self.all() if saved.entry == entry]:
            return found[0]
        raise ServiceError(404, f"expected a snapshot of this stream, got {entry}; list them first")

    def newest(
        self, resume: Callable[[checkpoint.Checkpoint], Session], faults: list[str]
    ) -> tuple[Session, Position] | None:
        """The session of the newest sound snapshot and its place in the journal; others are set aside as faults."""
        for saved in reversed(self.all()):
            try:
                found = checkpoint.load(saved.path)
                at = Position(*found.identity.get("position", (-1, -1, "")))
                if at.entry != saved.entry:
                    raise StateError(f"expected a snapshot of entry {saved.entry}, got one of {at.entry}")
                return resume(found), at
            except OSError:  # of the disk or of file handles; says nothing about the snapshot
                raise
            except checkpoint.OtherVersionError as error:  # left as it is: the program of before may come back
                faults.append(f"{saved.path.name} is not read: {error}")
            except Exception as error:  # an altered file may lead anywhere
                log.error("snapshot %s set aside: %s", saved.path.name, error)
                why = str(error).replace(f"{self.folder}/", "")  # the stream's owner reads it
                faults.append(f"{saved.path.name} was set aside: {why}")
                saved.path.rename(self.slot("damaged", saved.entry).path)
                self._forget("damaged", most=4)
        return None

    def tidy(self) -> int | None:
        """Delete what newer snapshots replace; the entry from which a restart needs the journal, where it is known."""
        self._forget("kept", most=self._most_kept)
        self._forget("before", most=8)
        self._forget("auto", most=INSIDE.autos)
        autos = self.all("auto")
        if len(autos) < INSIDE.autos:
            return None
        for restored in self.all("restored"):
            if restored.entry < autos[0].entry:
                restored.path.unlink(missing_ok=True)
        return autos[0].entry

    def _forget(self, kind: str, *, most: int) -> None:
        """Remove the oldest of a kind where there are too many."""
        for old in self.all(kind)[:-most]:
            old.path.unlink(missing_ok=True)


class SpaceFolder:
    """The label spaces of one stream, by fingerprint."""

    def __init__(self, stream: Path) -> None:
        self.first = shared_space(stream / "space.safetensors")
        self.folder = stream / "spaces"

    def find(self, fingerprint: str) -> LabelSpace | None:
        """The label space with a fingerprint, None where the stream has none such."""
        if fingerprint == self.first.fingerprint:
            return self.first
        path = self._path(fingerprint)
        return shared_space(path) if path.exists() else None

    def add(self, labels: LabelSpace) -> None:
        """Write a label space to disk, unless it is there."""
        if labels.fingerprint != self.first.fingerprint:
            self.folder.mkdir(exist_ok=True, mode=0o700)
            if not (path := self._path(labels.fingerprint)).exists():
                labels.save(path)

    def drop(self, *, but: Collection[str]) -> None:
        """Remove the label spaces that nothing needs, by fingerprint."""
        needed = {self._path(fingerprint) for fingerprint in but}
        for path in set(self.folder.glob("[!.]*.safetensors")) - needed:
            path.unlink()

    def _path(self, fingerprint: str) -> Path:
        return self.folder / f"{fingerprint[:16]}.safetensors"


_spaces: WeakValueDictionary[str, LabelSpace] = WeakValueDictionary()


def shared_space(path: Path) -> LabelSpace:
    """The label space in a file; of files with equal checksums one is read, and streams share it."""
    claimed = content_mark(path)
    found = _spaces.get(claimed)
    return found if found is not None else _spaces.setdefault(claimed, LabelSpace.load(path))


def arithmetic() -> str:
    """What the bits of a computation depend on beside its input."""
    cores = torch.get_num_threads()
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {cores} compute thread(s)"
