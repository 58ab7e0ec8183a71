"""One writer at a time for a file that several commands may change."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unseen.errors import StateError
from unseen.storage.files import claimed_checksum, remove_stale

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PAUSE = 0.05  # seconds between two tries


@contextmanager
def locked(path: Path, *, wait: float = 5.0) -> Iterator[None]:
    """Hold the lock of a file; refuse after `wait` seconds in which another process held it.

    What a command that was killed left half written of the file is removed.
    """
    lock = path.with_name(f".{path.name}.lock")
    handle = _acquire(lock, path, time.monotonic() + wait)
    try:
        remove_stale(path)
        yield
    finally:
        lock.unlink(missing_ok=True)  # while it is held, so that nobody locks a name that is about to go
        os.close(handle)


def content_mark(path: Path | None) -> str:
    """A mark that differs between two contents of a file of `save_tensors`, "" where there is no file."""
    return claimed_checksum(path) if path else ""


def check_unchanged(path: Path, mark: str) -> None:
    """Refuse a file that another command has changed since its mark was read; called while its lock is held."""
    if content_mark(path) != mark:
        raise StateError(
            f"expected {path} as it was when this command began, got one that another command has changed since; "
            "nothing was learned or changed, run it again"
        )


def _acquire(lock: Path, path: Path, until: float) -> int:
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        if _is_free(handle) and _is_current(handle, lock):
            os.write(handle, f"{os.getpid()}\n".encode())
            return handle
        holder = os.read(handle, 32).decode().strip() or "unknown"
        os.close(handle)
        if time.monotonic() > until:
            raise StateError(
                f"expected {path} for this command alone, got one that process {holder} is changing; "
                "wait until that command has ended"
            )
        time.sleep(PAUSE)


def _is_free(handle: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_current(handle: int, lock: Path) -> bool:
    """Whether a lock is that of the file, not of one that its holder has removed meanwhile."""
    try:
        return os.fstat(handle).st_ino == lock.stat().st_ino
    except FileNotFoundError:
        return False
