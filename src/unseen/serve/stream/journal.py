"""The journal of a stream: everything that happened to it, in order. SQLite in WAL mode, one fsync per block.

Every entry carries a hash of itself and of the entry before it, so a changed, missing or reordered one is noticed. An
entry is a whole block of samples as it was observed: replaying entries gives the bits that were computed live.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unseen.errors import StateError
from unseen.serve.stream.disk_errors import disk_is_full, is_transient
from unseen.serve.stream.receipts import Receipt, Receipts, forget_receipts, hash_of

VERSION = 1  # of the tables below, stamped into the file; what is newer or unstamped is refused
OPEN = """
PRAGMA page_size = 16384;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = 1024;
"""
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    payload BLOB NOT NULL, chain BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS receipts (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, asked BLOB NOT NULL, first INTEGER NOT NULL,
    answer BLOB NOT NULL, seal BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA user_version = {VERSION};
COMMIT;
"""

# when an entry was committed, of about one entry a second; files of before 0.2 get the table when they are opened
MOMENTS = "CREATE TABLE IF NOT EXISTS moments (entry INTEGER PRIMARY KEY, time REAL NOT NULL);"
MOMENT = 1.0  # seconds
TIP = "journal.tip"
OBSERVE, RESET, RESTORE, EDIT, GROUP = "observe", "reset", "restore", "edit", "group"
DISK = ThreadPoolExecutor(32, "disk")  # threads that wait for a disk while others compute; as many as there are writers


class Position(NamedTuple):
    """A point between two entries: the last entry, how many samples came so far, and the hash of it all."""

    entry: int
    seq: int
    chain: str

    @classmethod
    def start(cls, identity: str) -> Position:
        """The point before the first entry of the stream `identity` names."""
        return cls(0, 0, hash_of(identity.encode()).hex())

    def after(self, kind: str, count: int, payload: bytes) -> Position:
        """The point after one more entry."""
        numbers = struct.pack("<qqq", self.entry + 1, self.seq, count)
        chain = hash_of(bytes.fromhex(self.chain), kind.encode(), numbers, payload)
        return Position(self.entry + 1, self.seq + count, chain.hex())


@dataclass(frozen=True)
class JournalEntry:
    """One thing that happened: a block of features, a reset, a restore or an edit (the hash of the state file that
    it gave), or numbers that groups were given."""

    kind: str
    count: int
    payload: bytes


@dataclass(frozen=True)
class Retention:
    """What a journal may drop: entries before one that a snapshot covers, samples and receipts beyond a count."""

    entry: int
    seq: int
    receipts: int

    def apply(self, db: sqlite3.Connection) -> None:
        """Delete inside the transaction that is open; freed pages are used again, so the file stops growing."""
        db.execute("DELETE FROM entries WHERE id < ? AND first + count <= ?", (self.entry, self.seq))
        db.execute("DELETE FROM moments WHERE entry < (SELECT min(id) FROM entries)")
        forget_receipts(db, self.receipts)


def remove_after(db: sqlite3.Connection, entry: int) -> None:
    """Remove what came after an entry, inside the transaction that is open."""
    db.execute("DELETE FROM receipts WHERE first >= (SELECT min(first) FROM entries WHERE id > ?)", (entry,))
    db.execute("DELETE FROM entries WHERE id > ?", (entry,))
    db.execute("DELETE FROM moments WHERE entry > ?", (entry,))


class Tip:
    """The number of the last entry on disk, in a small file beside the journal.

    It is written after each commit and not waited for: it survives a kill, and after a power cut it may be behind the
    journal, never before it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> int:
        """The number, or -1 where there is none."""
        try:
            number, check = struct.unpack("<qq", self.path.read_bytes())
        except (FileNotFoundError, struct.error):
            return -1
        return number if check == ~number else -1

    def write(self, number: int) -> None:
        """Note a number, in the place of the one before."""
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(handle, struct.pack("<qq", number, ~number), 0)
        finally:
            os.close(handle)


class Journal:
    """A journal in one SQLite file. One thread at a time may use it; at rest it holds no file open."""

    is_open = False
    lost_tip = False  # whether the number of the last acknowledged entry was removed
    _noted = 0.0  # when the time of an entry was last noted

    def __init__(self, path: Path, start: Position) -> None:
        self.path, self.start, self.tip = path, start, Tip(path.with_name(TIP))
        self._receipts = Receipts()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._connection.executescript((OPEN + SCHEMA if self._is_new() else OPEN) + MOMENTS)
            self.is_open = True
            self._check_receipts()
            self._check_tip()
        except sqlite3.Error as error:
            self._connection.close()
            raise disk_is_full(error) if is_transient(error) else journal_damage(path, error) from error
        except BaseException:
            self._connection.close()
            raise

    @property
    def _db(self) -> sqlite3.Connection:
        """The connection, made again after a rest."""
        if not self.is_open:
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._connection.executescript(OPEN)
            self.is_open = True
        return self._connection

    def append(
        self, at: Position, entry: JournalEntry, receipts: Sequence[Receipt] = (), *, retention: Retention | None = None
    ) -> Position:
        """Write one entry and its receipts in one transaction, wait for the disk, and return the new point."""
        after = at.after(entry.kind, entry.count, entry.payload)
        row = (after.entry, entry.kind, at.seq, entry.count, entry.payload, bytes.fromhex(after.chain))
        now = time.time()
        with self._transaction():
            self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
            self._receipts.add(self._db, receipts)
            if abs(now - self._noted) >= MOMENT:
                self._db.execute("INSERT OR REPLACE INTO moments VALUES (?, ?)", (after.entry, now))
            if retention:
                retention.apply(self._db)
        self._receipts.added()
        self.tip.write(after.entry)
        if abs(now - self._noted) >= MOMENT:
            self._noted = now
        return after

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what is done meanwhile and wait for the disk, or do nothing of it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def run(self, append: Callable[[], None]) -> Future[None]:
        """Do what appends while the caller goes on; the caller waits before it does anything."""
        return DISK.submit(append)

    def take_back(self, to: Position) -> None:
        """Remove the entry after a point, which could not be computed."""
        self.tip.write(to.entry)  # first: it may be behind the journal, never before it
        with self._transaction():
            remove_after(self._db, to.entry)

    def receipt(self, key: bytes) -> Receipt | None:
        """What was answered to a key, if that is still remembered."""
        try:
            return self._receipts.find(self._db, key)
        except ValueError as error:
            raise journal_damage(self.path, error) from error

    def unanswered(self) -> list[Receipt]:
        """The receipts of the last block whose answers were not written."""
        return self._receipts.unanswered(self._db)

    def answer(self, receipts: Iterable[Receipt]) -> None:
        """Keep the answers to receipts that were appended without; they are written with the next entry."""
        self._receipts.answer(receipts)

    def flush(self) -> None:
        """Write the answers that were kept, and wait for the disk."""
        if self._receipts:
            with self._transaction():
                self._receipts.add(self._db, ())
            self._receipts.added()

    def replay(self, after: Position) -> Iterator[tuple[JournalEntry, Position]]:
        """Yield every entry after a point with the point behind it, refusing what is not as it was written."""
        try:
            at = self._checked_start(after)
            rows = self._db.execute("SELECT * FROM entries WHERE id > ? ORDER BY id", (after.entry,))
            for number, kind, first, count, payload, chain in rows:
                entry, here = JournalEntry(kind, count, payload), at
                at = here.after(kind, count, payload)
                if (number, first, chain.hex()) != (at.entry, here.seq, at.chain):
                    raise journal_damage(self.path, f"entry {here.entry + 1} is missing or altered")
                yield entry, at
        except sqlite3.Error as error:
            raise disk_is_full(error) if is_transient(error) else journal_damage(self.path, error) from error

    def note(self, name: str) -> str | None:
        """What was noted under a name."""
        row = self._db.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_note(self, name: str, value: str) -> None:
        """Note something about the journal as a whole."""
        self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))

    def size(self) -> int:
        """The bytes the journal takes on disk."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def rest(self) -> None:
        """Close the files until they are needed again."""
        self.is_open = False
        self._connection.close()

    def close(self) -> None:
        """Close the files; what was appended stays."""
        with suppress(sqlite3.Error):  # a replay gives the answers again
            self.flush()
        self.rest()

    def _check_receipts(self) -> None:
        """Refuse an index that does not agree with its table: a retry would not be found, and learned twice."""
        found = self._connection.execute("PRAGMA integrity_check('receipts')").fetchone()[0]
        if found != "ok":
            raise journal_damage(self.path, found)

    def _check_tip(self) -> None:
        """Refuse a journal that lacks what was acknowledged: SQLite takes a shortened log for one that ended there."""
        last = int(self._db.execute("SELECT ifnull(max(id), 0) FROM entries").fetchone()[0])
        tip = self.tip.read()
        if tip > last:
            raise journal_damage(self.path, f"the journal ends at entry {last} where entry {tip} was acknowledged")
        self.lost_tip = tip < 0 and self.note("tip") is not None
        if tip < 0:
            self.tip.write(last)
            self.set_note("tip", TIP)

    def _is_new(self) -> bool:
        """Whether there are no tables yet; refuse a file of another format before anything is written to it."""
        found = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        is_new = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if is_new or found == VERSION:
            return bool(is_new)
        remedy = "a newer unseen wrote it, install that" if found > VERSION else "open it with the unseen it is from"
        raise StateError(f"expected a journal of format {VERSION} in {self.path.name}, got format {found}; {remedy}")

    def _checked_start(self, after: Position) -> Position:
        if after == self.start:
            return after
        row = self._db.execute("SELECT chain FROM entries WHERE id = ?", (after.entry,)).fetchone()
        if row is None or row[0].hex() != after.chain:
            raise journal_damage(self.path, f"entry {after.entry}, which a snapshot covers, is missing or altered")
        return after


def journal_damage(path: Path, why: object) -> StateError:
    """The error for a journal that cannot be trusted."""
    return StateError(f"expected the journal {path.name} as it was written, got damage ({why}); restore a backup")
