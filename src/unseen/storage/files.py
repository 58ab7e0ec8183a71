"""Write files whole or not at all, one writer at a time, and read back only what was written; where the cache is."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from unseen.errors import StateError

if TYPE_CHECKING:
    from torch import Tensor

PARTIAL = ".partial"  # how a file that is being written is called at its end
NOT_OURS = "something unseen did not write"
STALE = (
    5.0  # seconds without a write after which such a file, whose writer holds no lock, is of a command that was killed
)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well, and vanishes when not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_stale(path: Path) -> None:
    """Remove what killed commands left half written of a file and of those called after it (`NAME.space.safetensors`).

    Call it as the only writer of the file.
    """
    for torn in path.parent.glob(f".{escape(path.stem)}.*{PARTIAL}"):
        with suppress(FileNotFoundError):
            if time.time() - torn.stat().st_mtime > STALE:
                torn.unlink()


@contextmanager
def locked(path: Path, *, wait: float = 5.0) -> Iterator[None]:
    """Hold the lock of a file; refuse after `wait` seconds in which another process held it.

    What a command that was killed left half written of the file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    try:
        held = FileLock(lock).acquire(timeout=wait)
    except Timeout as error:
        raise StateError(
            f"expected {path} for this command alone, got one that another process is changing; "
            "wait until that command has ended"
        ) from error
    with held:
        try:
            remove_stale(path)
            yield
        finally:
            with suppress(OSError):  # while it is held, so that nobody locks a name that is about to go
                lock.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: a power cut can undo a rename that was not waited for."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_tensors(path: str | Path, tensors: dict[str, Tensor], *, kind: str, header: str) -> None:
    """Write `tensors` and a JSON `header` as one safetensors file that carries its own checksum."""
    from safetensors.torch import save_file  # late: who writes plain files needs no torch

    metadata = {"kind": kind, "header": header, "sha256": _checksum(tensors, header)}
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
            _sort_header(temporary)
        except SafetensorError as error:  # what was to be written is sound, so the disk is not
            raise OSError(errno.EIO, str(error), str(path)) from error


def _sort_header(path: Path) -> None:
    """Put the header of a file in order: its writer has none, and equal content is to give equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        text = json.dumps(json.loads(file.read(size)), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        file.seek(8)
        file.write(text.encode().ljust(size))


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of any safetensors file; one that is damaged raises SafetensorError."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def claimed_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a safetensors file, unchecked and without its tensors; none of a damaged file."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def content_mark(path: Path | None) -> str:
    """The checksum that a file of `save_tensors` carries, unchecked; "" where there is no file."""
    return claimed_metadata(path).get("sha256", "") if path else ""


def check_unchanged(path: Path, mark: str) -> None:
    """Refuse a file that another command has changed since its mark was read; called while its lock is held."""
    if content_mark(path) != mark:
        raise StateError(
            f"expected {path} as it was when this command began, got one that another command has changed since; "
            "nothing was learned or changed, run it again"
        )


def check_kind(path: str | Path, *, kind: str) -> None:
    """Refuse a path that holds no file of a kind, by its first bytes alone: what is damaged further on is not seen."""
    path = Path(path)
    if not path.is_file():
        raise StateError(
            f"expected a {kind} file, got {'a folder' if path.is_dir() else 'no file'} at {path}; check the path"
        )
    try:
        with safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("kind", NOT_OURS)
    except (SafetensorError, OSError) as error:
        if other := _other_content(path):
            raise StateError(
                f"expected a {kind} file at {path}, got {other}; pass the right file or restore a copy"
            ) from error
        raise StateError(f"expected a {kind} file at {path}, got a damaged one ({error}); restore a copy") from error
    if found != kind:
        raise StateError(f"expected a {kind} file at {path}, got {found}; pass the right file")


def _other_content(path: Path) -> str:
    """What a file is that was never a safetensors file, which begins with its length and JSON; else ""."""
    with path.open("rb") as file:
        start = file.read(9)
    if not start:
        return "an empty file"
    return NOT_OURS if start[8:] != b"{" else ""


def load_tensors(path: str | Path, *, kind: str) -> tuple[dict[str, Tensor], str]:
    """The tensors and the header of a file written by `save_tensors`, checked bit by bit."""
    check_kind(path, kind=kind)
    try:
        tensors, metadata = read_safetensors(path)
    except (SafetensorError, OSError) as error:
        raise StateError(f"expected a {kind} file at {path}, got a damaged one ({error}); restore a copy") from error
    if metadata.get("sha256") != _checksum(tensors, metadata["header"]):
        raise StateError(f"expected {path} as it was written, got altered bytes (checksum differs); restore a copy")
    return tensors, metadata["header"]


def _checksum(tensors: dict[str, Tensor], header: str) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # read in place: a copy takes nearly as long
        digest.update(tensor.detach().cpu().contiguous().flatten().numpy().data)
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_dir(*parts: str) -> Path:
    """A folder of the cache: under $UNSEEN_CACHE, or under the platform's own place for caches."""
    home = Path.home()
    if chosen := os.environ.get("UNSEEN_CACHE"):
        root = Path(chosen).expanduser()
    elif sys.platform == "darwin":
        root = home / "Library/Caches/unseen"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", home / "AppData/Local")) / "unseen"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "unseen"
    return root.joinpath(*parts)
