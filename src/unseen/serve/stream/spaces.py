"""The label spaces that a stream has had: the one it was created with, and those that edits of its names made.

STREAM/space.safetensors               the one it was created with
STREAM/spaces/FINGERPRINT.safetensors  others, as long as a state on disk needs them
STREAM/spaces/FINGERPRINT.json         their names, for good: verdicts that were given before an edit are shown by them
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from unseen import LabelSpace
from unseen.errors import ServiceError
from unseen.serve.stream.batch import BatchVerdicts
from unseen.serve.stream.history import RecentVerdicts
from unseen.serve.stream.journal import Journal, Position
from unseen.storage.files import claimed_checksum, replacing

NOTE = "names"  # in the journal: which names held until when
SHOWN = 16  # characters of a fingerprint in the name of a file


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
        if labels.fingerprint == self.first.fingerprint:
            return
        self.folder.mkdir(exist_ok=True, mode=0o700)
        if not (path := self._path(labels.fingerprint)).exists():
            labels.save(path)
        with replacing(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(labels.names))

    def names(self, fingerprint: str) -> Sequence[str]:
        """The names of a label space that the stream has or had."""
        if fingerprint == self.first.fingerprint:
            return self.first.names
        try:
            names: list[str] = json.loads(self._path(fingerprint).with_suffix(".json").read_text())
        except FileNotFoundError:
            if self.folder.exists():
                raise
            raise ServiceError(404, "expected a stream, got one that was deleted; list them first") from None
        return names

    def drop(self, *, but: Collection[str]) -> None:
        """Remove the label spaces that nothing needs, by fingerprint; their names stay."""
        needed = {self._path(fingerprint) for fingerprint in but}
        for path in set(self.folder.glob("[!.]*.safetensors")) - needed:
            path.unlink()

    def _path(self, fingerprint: str) -> Path:
        return self.folder / f"{fingerprint[:SHOWN]}.safetensors"


class NamesUntil(NamedTuple):
    """Samples before number `seq` were judged by the names of a label space; journal entry `entry` changed them."""

    entry: int
    seq: int
    fingerprint: str


class NamesOverTime:
    """By which names each sample of a stream was judged; noted in the journal, because its entries are dropped."""

    def __init__(self, spaces: SpaceFolder, journal: Journal, now: Callable[[], LabelSpace]) -> None:
        self._spaces, self._journal, self._now = spaces, journal, now
        self.changes = [NamesUntil(*one) for one in json.loads(journal.note(NOTE) or "[]")]

    def changed(self, at: Position, before: str, after: str) -> None:
        """Note that names have changed, unless that is noted: the entry may be replayed."""
        if before != after and all(change.entry != at.entry for change in self.changes):
            self.changes.append(NamesUntil(at.entry, at.seq, before))
            self._journal.set_note(NOTE, json.dumps(self.changes))

    def at(self, seq: int) -> Sequence[str]:
        """The names that a sample was judged by."""
        for change in self.changes:
            if seq < change.seq:
                return self._spaces.names(change.fingerprint)
        return self._now().names

    def split(self, recent: RecentVerdicts) -> Iterator[BatchVerdicts]:
        """Yield verdicts in parts that were judged by the same names."""
        first, last = recent.first, recent.first + len(recent.verdicts)
        ends = [change.seq for change in self.changes if first < change.seq < last]
        for start, end in pairwise([first, *ends, last]):
            if start < end:
                yield BatchVerdicts(start, recent.verdicts[start - first : end - first], self.at(start))


_spaces: WeakValueDictionary[str, LabelSpace] = WeakValueDictionary()


def shared_space(path: Path) -> LabelSpace:
    """The label space in a file; of files with equal checksums one is read, and streams share it."""
    claimed = claimed_checksum(path)
    found = _spaces.get(claimed)
    return found if found is not None else _spaces.setdefault(claimed, LabelSpace.load(path))
