"""Copy the data folder of a service that runs, and put a copy in its place.

Every stream is copied to a state that a kill at some moment would have left: its snapshots first, then its journal by
SQLite's own backup, which sees whole transactions. A journal that has dropped what a copied snapshot needs is copied
again with newer snapshots.
"""

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from unseen.errors import DataError, StateError
from unseen.progress import Progress, no_progress
from unseen.serve.http.auth import MARKER, OLD, TABLE
from unseen.serve.stream.config import STREAM_ID, read_config
from unseen.serve.stream.folder import exclusive_lock
from unseen.serve.stream.journal import EDIT, MOMENTS, RESTORE, TIP, Tip, remove_after
from unseen.serve.stream.snapshots import AUTO, BEFORE, KEPT, RESTORED, SnapshotFolder
from unseen.storage.files import sync_folder

TRIES = 5  # of a stream whose snapshots change faster than they are copied
FILES = (OLD, MARKER)  # beside streams and spaces


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
    if (data / TABLE).exists():
        with closing(_copied(data / TABLE, half / TABLE)):
            (half / TABLE).chmod(0o600)
    if (data / "spaces").is_dir():
        shutil.copytree(data / "spaces", half / "spaces")
    half.rename(target)
    sync_folder(target.parent)
    return len(copied)


def restore(source: Path, data: Path, until: float | None = None) -> int:
    """Put a backup where a service will find it, and return how many streams it has; a folder in use is refused.

    With `until`, a time of the epoch, every stream goes back to what it had acknowledged by then, to the second.
    """
    if not (source / "streams").is_dir():
        raise DataError(f"expected a folder that `unseen backup` made, got {source}; check the path")
    if data.exists() and any(path.name != "lock" for path in data.iterdir()):
        with exclusive_lock(data / "lock"):
            raise DataError(f"expected a new or empty data folder, got {data}, which is not; move it away first")
    half = data.with_name(f".{data.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half)
    half.chmod(0o700)
    if until is not None:
        for folder in stream_folders(half):
            go_back(folder, until)
    shutil.rmtree(data, ignore_errors=True)
    data.parent.mkdir(parents=True, exist_ok=True)
    half.rename(data)
    sync_folder(data.parent)
    return len(stream_folders(data))


def go_back(folder: Path, until: float) -> None:
    """Drop everything from a copied stream that came after a moment, or the stream if it was created later."""
    if datetime.fromisoformat(read_config(folder).created).timestamp() > until:
        shutil.rmtree(folder)
    elif (folder / "journal.db").exists():
        _cut(folder, until)


def _cut(folder: Path, until: float) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as db, db:
        db.execute(MOMENTS)
        last, first = db.execute("SELECT ifnull(max(id), 0), ifnull(min(id), 1) FROM entries").fetchone()
        later = db.execute("SELECT min(entry) FROM moments WHERE time > ?", (until,)).fetchone()[0]
        entry = last if later is None else later - 1
        snapshots = SnapshotFolder(folder / "snapshots", 0)
        bases = [saved.entry for saved in snapshots.all() if saved.entry <= entry]
        if first > max(bases, default=1):
            raise _too_long_ago(folder, db, [saved.entry for saved in snapshots.all()])
        remove_after(db, entry)
    for saved in snapshots.all(AUTO, KEPT, RESTORED, BEFORE):
        if saved.entry > entry:
            saved.path.unlink()
    Tip(folder / TIP).write(entry)


def _too_long_ago(folder: Path, db: sqlite3.Connection, snapshots: Sequence[int]) -> StateError:
    row = db.execute("SELECT min(time) FROM moments WHERE entry >= ?", (min(snapshots, default=1),)).fetchone()
    earliest = datetime.fromtimestamp(row[0] or 0, UTC).isoformat(timespec="seconds")
    return StateError(
        f"expected a moment from {earliest} on, got one before what stream {folder.name} still has; take an older "
        "backup, and let the service retain more samples (--set retain=N)"
    )


def stream_folders(data: Path) -> list[Path]:
    """The folders of the streams in a data folder."""
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
    if (folder / "spaces").is_dir():  # after the journal: an edit writes its label space first
        shutil.copytree(folder / "spaces", target / "spaces", ignore=shutil.ignore_patterns(".*"))


def _copy_journal(path: Path, target: Path) -> None:
    with closing(_copied(path, target)) as copy:
        last = copy.execute("SELECT ifnull(max(id), 0) FROM entries").fetchone()[0]
    Tip(target.with_name("journal.tip")).write(int(last))


def _copied(path: Path, target: Path) -> sqlite3.Connection:
    """A copy of a database that may be in use: what was committed."""
    copy = sqlite3.connect(target)
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as source:
            source.backup(copy)
    except sqlite3.Error as error:
        copy.close()
        raise StateError(f"expected a {path.name} that can be copied, got {error}; see the stream's status") from error
    return copy


def _is_whole(target: Path) -> bool:
    """Whether the journal goes on from the newest snapshot, or from the start, with every restored state."""
    if not (target / "journal.db").exists():
        return True
    names = [path.stem.partition("-") for path in (target / "snapshots").iterdir()]
    newest = max((int(entry) for kind, _, entry in names if kind in (AUTO, KEPT) and entry.isdecimal()), default=0)
    copy = sqlite3.connect(target / "journal.db")
    try:
        first, last = copy.execute("SELECT ifnull(min(id), 1), ifnull(max(id), 0) FROM entries").fetchone()
        states = copy.execute(
            "SELECT id FROM entries WHERE kind IN (?, ?) AND id > ?", (RESTORE, EDIT, newest)
        ).fetchall()
    finally:
        copy.close()
    kept = {int(entry) for kind, _, entry in names if kind == RESTORED}
    return first <= max(1, newest) <= max(1, last) and all(entry in kept for (entry,) in states)
