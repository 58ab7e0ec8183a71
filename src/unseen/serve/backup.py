"""Copy the data folder of a service that runs, and put a copy in its place.

Every stream is copied to a state that a kill at some moment would have left: its snapshots first, then its journal by
SQLite's own backup, which sees whole transactions. A journal that has dropped what a copied snapshot needs is copied
again with newer snapshots.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from unseen.errors import DataError, StateError
from unseen.progress import Progress, no_progress
from unseen.serve.stream.config import STREAM_ID
from unseen.serve.stream.folder import exclusive_lock
from unseen.serve.stream.journal import RESTORE, Tip
from unseen.serve.stream.snapshots import AUTO, KEPT, RESTORED
from unseen.storage.files import sync_folder

TRIES = 5  # of a stream whose snapshots change faster than they are copied
FILES = ("keys.json", "keys.required")  # beside streams and spaces


def backup(data: Path, target: Path, progress: Progress = no_progress) -> int:
    """Copy a data folder, in use or not, to a new folder, and return how many streams it has."""
    if not (data / "streams").is_dir():
        raise DataError(f"expected the folder of a service, got {data}; pass its --data")
    if target.exists():
        raise DataError(f"expected a new folder for the backup, got {target}, which exists; choose another")
    half = target.with_name(f".{target.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    (half / "streams").mkdir(parents=True, mode=0o700)
    half.chmod(0o700)
    copied = list(_copy_streams(data, half, progress))
    for name in FILES:
        if (data / name).exists():
            shutil.copy2(data / name, half / name)
    if (data / "spaces").is_dir():
        shutil.copytree(data / "spaces", half / "spaces")
    half.rename(target)
    sync_folder(target.parent)
    return len(copied)


def restore(source: Path, data: Path) -> int:
    """Put a backup where a service will find it, and return how many streams it has; a folder in use is refused."""
    if not (source / "streams").is_dir():
        raise DataError(f"expected a folder that `unseen backup` made, got {source}; check the path")
    if data.exists() and any(path.name != "lock" for path in data.iterdir()):
        with exclusive_lock(data / "lock"):
            raise DataError(f"expected a new or empty data folder, got {data}, which is not; move it away first")
    half = data.with_name(f".{data.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half)
    half.chmod(0o700)
    shutil.rmtree(data, ignore_errors=True)
    data.parent.mkdir(parents=True, exist_ok=True)
    half.rename(data)
    sync_folder(data.parent)
    return len(stream_folders(data))


def stream_folders(data: Path) -> list[Path]:
    """Return the folders of the streams in a data folder."""
    return sorted(path for path in (data / "streams").iterdir() if STREAM_ID.fullmatch(path.name))


def _copy_streams(data: Path, target: Path, progress: Progress) -> Iterator[Path]:
    folders = stream_folders(data)
    for number, folder in enumerate(folders):
        progress(number, len(folders))
        if copy_stream(folder, target / "streams" / folder.name):
            yield folder
    progress(len(folders), len(folders))


def copy_stream(folder: Path, target: Path) -> bool:
    """Copy a stream that may be in use; return whether it is still there."""
    for _ in range(TRIES):
        shutil.rmtree(target, ignore_errors=True)
        try:
            _copy_once(folder, target)
        except FileNotFoundError:
            if not folder.exists():  # deleted meanwhile
                shutil.rmtree(target, ignore_errors=True)
                return False
            continue  # a snapshot made way for a newer one
        if _is_whole(target):
            return True
    raise StateError(f"expected to copy stream {folder.name}, got newer snapshots {TRIES} times; try again")


def _copy_once(folder: Path, target: Path) -> None:
    (target / "snapshots").mkdir(parents=True)
    for name in ("stream.json", "space.safetensors"):
        shutil.copy2(folder / name, target / name)
    for path in (folder / "snapshots").glob("[!.]*.safetensors"):
        shutil.copy2(path, target / "snapshots" / path.name)
    if (folder / "journal.db").exists():
        _copy_journal(folder / "journal.db", target / "journal.db")


def _copy_journal(path: Path, target: Path) -> None:
    source, copy = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30), sqlite3.connect(target)
    try:
        source.backup(copy)
        last = copy.execute("SELECT ifnull(max(id), 0) FROM entries").fetchone()[0]
    except sqlite3.Error as error:
        raise StateError(f"expected a journal that can be copied, got {error}; see the stream's status") from error
    finally:
        source.close()
        copy.close()
    Tip(target.with_name("journal.tip")).write(int(last))


def _is_whole(target: Path) -> bool:
    """Return whether the journal goes on from the newest snapshot, or from the start, with every restored state."""
    if not (target / "journal.db").exists():
        return True
    names = [path.stem.partition("-") for path in (target / "snapshots").iterdir()]
    newest = max((int(entry) for kind, _, entry in names if kind in (AUTO, KEPT) and entry.isdecimal()), default=0)
    copy = sqlite3.connect(target / "journal.db")
    try:
        first, last = copy.execute("SELECT ifnull(min(id), 1), ifnull(max(id), 0) FROM entries").fetchone()
        states = copy.execute("SELECT id FROM entries WHERE kind = ? AND id > ?", (RESTORE, newest)).fetchall()
    finally:
        copy.close()
    kept = {int(entry) for kind, _, entry in names if kind == RESTORED}
    return first <= max(1, newest) <= max(1, last) and all(entry in kept for (entry,) in states)
