"""The label spaces that a stream has had: the one it was created with, and those that edits of its names made.

STREAM/space.safetensors               the one it was created with
STREAM/spaces/FINGERPRINT.safetensors  others, as long as a state on disk needs them
"""

from collections.abc import Collection
from pathlib import Path
from weakref import WeakValueDictionary

from unseen import LabelSpace
from unseen.storage.files import claimed_checksum


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
    claimed = claimed_checksum(path)
    found = _spaces.get(claimed)
    return found if found is not None else _spaces.setdefault(claimed, LabelSpace.load(path))
