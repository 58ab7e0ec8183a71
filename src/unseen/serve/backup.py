"""Copy the data folder of a service that runs, and put a copy in its place.

Every stream is copied to a state that a kill at some moment would have left: its snapshots first, then its journal by
SQLite's own backup, which sees whole transactions. A journal that has dropped what a copied snapshot needs is copied
again with newer snapshots.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from unseen.errors import DataError, StateError
from unseen.serve.http.auth import MARKER, OLD, TABLE
from unseen.serve.stream.folder import STREAM_ID, exclusive_lock
from unseen.serve.stream.journal import TIP, Tip
from unseen.serve.stream.states import SnapshotFolder
from unseen.storage.files import sync_folder


def backup(data: Path, target: Path) -> int:
    """Copy a data folder, in use or not, to a new folder, and return how many streams it has."""
    if not (data / "streams").is_dir():
        raise DataError(f"expected the folder of a service, got {data}; pass its --data")
    if target.exists():
        raise DataError(f"expected a new folder for the backup, got {target}, which exists; choose another")
    half = target.with_name(f".{target.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    (half / "streams").mkdir(parents=True, mode=0o700)
    half.chmod(0o700)
    copied = sum(copy_stream(folder, half / "streams" / folder.name) for folder in stream_folders(data))
    for name in (OLD, MARKER):
        if (data / name).exists():
            shutil.copy2(data / name, half / name)
    if (data / TABLE).exists():
        copy_database(data / TABLE, half / TABLE).close()
        (half / TABLE).chmod(0o600)
    if (data / "spaces").is_dir():
        shutil.copytree(data / "spaces", half / "spaces")
    half.rename(target)
    sync_folder(target.parent)
    return copied


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
    """The folders of the streams in a data folder."""
    return sorted(path for path in (data / "streams").iterdir() if STREAM_ID.fullmatch(path.name))


def copy_stream(folder: Path, target: Path, *, tries: int = 5) -> bool:
    """Copy a stream that may be in use; return whether it is still there."""
    for _ in range(tries):
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
    raise StateError(f"expected to copy stream {folder.name}, got newer snapshots {tries} times; try again")


def _copy_once(folder: Path, target: Path) -> None:
    (target / "snapshots").mkdir(parents=True)
    for name in ("stream.json", "space.safetensors"):
        shutil.copy2(folder / name, target / name)
    for path in (folder / "snapshots").glob("[!.]*.safetensors"):
        shutil.copy2(path, target / "snapshots" / path.name)
    if (folder / "journal.db").exists():
        with closing(copy_database(folder / "journal.db", target / "journal.db")) as copy:
            last = copy.execute("SELECT ifnull(max(id), 0) FROM entries").fetchone()[0]
        Tip(target / TIP).write(int(last))
    if (folder / "spaces").is_dir():  # after the journal: an edit writes its label space first
        shutil.copytree(folder / "spaces", target / "spaces", ignore=shutil.ignore_patterns(".*"))


def copy_database(path: Path, target: Path) -> sqlite3.Connection:
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
    snapshots = SnapshotFolder(target / "snapshots", 0)
    newest = max((saved.entry for saved in snapshots.all()), default=0)
    with closing(sqlite3.connect(target / "journal.db")) as copy:
        first, last = copy.execute("SELECT ifnull(min(id), 1), ifnull(max(id), 0) FROM entries").fetchone()
        wanted = "SELECT id FROM entries WHERE kind IN (?, ?) AND id > ?"
        needed = {entry for (entry,) in copy.execute(wanted, ("restore", "edit", newest))}
    return first <= max(1, newest) <= max(1, last) and needed <= {saved.entry for saved in snapshots.all("restored")}
