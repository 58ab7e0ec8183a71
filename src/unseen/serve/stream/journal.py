"""The journal of a stream: everything that happened to it, in order. SQLite in WAL mode, one fsync per block.

Every entry carries a hash of itself and of the entry before it, so a changed, missing or reordered one is noticed. An
entry is a whole block of samples as it was observed: replaying entries gives the bits that were computed live.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from unseen.errors import StateError
from unseen.serve.stream.disk import disk_is_full, is_transient

FORMATS = (2, 1)  # of the tables below, stamped into the file: what is written, what is read; others are refused
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
PRAGMA user_version = {FORMATS[0]};
COMMIT;
"""

TIP = "journal.tip"
Kind = Literal["observe", "reset", "restore", "edit", "group"]
DISK = ThreadPoolExecutor(max_workers=32, thread_name_prefix="disk")  # they wait for a disk while others compute


def hash_of(*parts: bytes) -> bytes:
    """16 bytes that depend on every part and on where one ends."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


class Position(NamedTuple):
    """A point between two entries: the last entry, how many samples came so far, and the hash of it all."""

    entry: int
    seq: int
    chain: str

    @classmethod
    def start(cls, identity: str) -> Position:
        """The point before the first entry of the stream `identity` names."""
        return cls(0, 0, hash_of(identity.encode()).hex())

    def after(self, entry: JournalEntry) -> Position:
        """The point after one more entry."""
        numbers = struct.pack("<qqq", self.entry + 1, self.seq, entry.count)
        chain = hash_of(bytes.fromhex(self.chain), entry.kind.encode(), numbers, entry.payload)
        return Position(self.entry + 1, self.seq + entry.count, chain.hex())


@dataclass(frozen=True)
class JournalEntry:
    """One thing that happened: a block of features, a reset, a restore or an edit (the hash of the state file that
    it gave), or numbers that groups were given."""

    kind: Kind
    count: int
    payload: bytes


@dataclass(frozen=True)
class Receipt:
    """What is kept of a request with an idempotency key: hashes of the key and of its samples, and their numbers."""

    key: bytes
    digest: bytes
    first: int
    count: int

    @property
    def row(self) -> tuple[bytes, bytes, int, bytes, bytes]:
        """The receipt as a row, with its checksum."""
        count = self.count.to_bytes(8, "little")
        return self.key, self.digest, self.first, count, _sealed(self.key, self.digest, self.first, count)

    @classmethod
    def of_row(cls, key: bytes, digest: bytes, first: int, answer: bytes, seal: bytes) -> Receipt:
        """The receipt in a row; journals of 0.2 have the verdicts in place of their count."""
        if seal not in (b"", _sealed(key, digest, first, answer)):
            raise ValueError("a receipt's checksum differs")
        is_count = len(answer) == len(bytes(8))
        return cls(key, digest, first, int.from_bytes(answer, "little") if is_count else len(answer) // 39)


def _sealed(key: bytes, digest: bytes, first: int, answer: bytes) -> bytes:
    return hash_of(key, digest, struct.pack("<q", first), answer)


class Retention(NamedTuple):
    """What a journal may drop: entries before one that a snapshot covers, samples and receipts beyond a count."""

    entry: int
    seq: int
    receipts: int


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
    """A journal in one SQLite file. One thread at a time may use it."""

    lost_tip = False  # whether the number of the last acknowledged entry was removed

    def __init__(self, path: Path, start: Position) -> None:
        self.path, self.start, self.tip = path, start, Tip(path.with_name(TIP))
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._refuse_other_formats()
            self._db.executescript(OPEN + SCHEMA)
            self._check_receipts()
            self._check_tip()
        except sqlite3.Error as error:
            self._db.close()
            raise disk_is_full(error) if is_transient(error) else journal_damage(path, error) from error
        except BaseException:
            self._db.close()
            raise

    def append(
        self, at: Position, entry: JournalEntry, receipts: Sequence[Receipt] = (), *, retention: Retention | None = None
    ) -> Position:
        """Write one entry and its receipts in one transaction, wait for the disk, and return the new point."""
        after = at.after(entry)
        row = (after.entry, entry.kind, at.seq, entry.count, entry.payload, bytes.fromhex(after.chain))
        with self._db as db:  # commits at its end and waits for the disk, or does nothing of it
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
            rows = [receipt.row for receipt in receipts]
            db.executemany("INSERT INTO receipts (key, asked, first, answer, seal) VALUES (?, ?, ?, ?, ?)", rows)
            if retention:  # freed pages are used again, so the file stops growing
                db.execute("DELETE FROM entries WHERE id < ? AND first + count <= ?", retention[:2])
                most = retention.receipts
                db.execute("DELETE FROM receipts WHERE id <= (SELECT max(id) FROM receipts) - ?", (most,))
        self.tip.write(after.entry)
        return after

    def take_back(self, to: Position) -> None:
        """Remove the entry after a point, which could not be computed."""
        self.tip.write(to.entry)  # first: it may be behind the journal, never before it
        with self._db as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("DELETE FROM receipts WHERE first >= (SELECT min(first) FROM entries WHERE id > ?)", (to.entry,))
            db.execute("DELETE FROM entries WHERE id > ?", (to.entry,))

    def receipts(self, where: str, value: bytes | int) -> list[Receipt]:
        """The receipts with `key` or from `first` on, as far as they are remembered."""
        rows = self._db.execute(
            f"SELECT key, asked, first, answer, seal FROM receipts WHERE {where} ? ORDER BY id", (value,)
        )
        try:
            return [Receipt.of_row(*row) for row in rows]
        except ValueError as error:
            raise journal_damage(self.path, error) from error

    def replay(self, after: Position) -> Iterator[tuple[JournalEntry, Position]]:
        """Yield every entry after a point with the point behind it, refusing what is not as it was written."""
        try:
            at = self._checked_start(after)
            rows = self._db.execute("SELECT * FROM entries WHERE id > ? ORDER BY id", (after.entry,))
            for number, kind, first, count, payload, chain in rows:
                entry, here = JournalEntry(kind, count, payload), at
                at = here.after(entry)
                if (number, first, chain.hex()) != (at.entry, here.seq, at.chain):
                    raise journal_damage(self.path, f"entry {here.entry + 1} is missing or altered")
                yield entry, at
        except sqlite3.Error as error:
            raise disk_is_full(error) if is_transient(error) else journal_damage(self.path, error) from error

    @property
    def is_whole(self) -> bool:
        """Whether nothing has been dropped because a snapshot covers it."""
        return bool(self._db.execute("SELECT ifnull(min(id), 1) = 1 FROM entries").fetchone()[0])

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

    def close(self) -> None:
        """Close the files."""
        self._db.close()

    def _check_receipts(self) -> None:
        """Refuse an index that does not agree with its table: a retry would not be found, and learned twice."""
        found = self._db.execute("PRAGMA integrity_check('receipts')").fetchone()[0]
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

    def _refuse_other_formats(self) -> None:
        """Refuse a file of another format before anything is written to it."""
        found = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        is_new = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not is_new and found not in FORMATS:
            is_newer = found > FORMATS[0]
            remedy = "a newer unseen wrote it, install that" if is_newer else "open it with the unseen it is from"
            expected = " or ".join(map(str, FORMATS))
            raise StateError(f"expected a journal of format {expected}, got format {found}; {remedy}")

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
