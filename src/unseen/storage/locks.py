"""One writer at a time for a file that several commands may change."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from unseen.errors import StateError
from unseen.storage.files import claimed_checksum, remove_stale


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
