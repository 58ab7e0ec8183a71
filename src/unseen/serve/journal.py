"""What happened to a stream, in order, on disk before anyone is told: SQLite in WAL mode, one fsync per block.

Every entry carries a hash of itself and of the entry before it, so a changed, missing or reordered one is noticed. An
entry is a whole block of samples as it was observed: replaying entries gives the bits that were computed live.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt32

from unseen.errors import StateError

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

WORD = 0xFFFFFFFF
OBSERVE, RESET, RESTORE = "observe", "reset", "restore"


class Position(NamedTuple):
    """A point between two entries: the last entry, how many samples came so far, and the hash of it all."""

    entry: int
    seq: int
    chain: str

    @classmethod
    def start(cls, identity: str) -> Position:
        """Return the point before the first entry of the stream `identity` names."""
        return cls(0, 0, _hash(identity.encode()).hex())

    def after(self, kind: str, count: int, payload: bytes) -> Position:
        """Return the point after one more entry."""
        numbers = struct.pack("<qqq", self.entry + 1, self.seq, count)
        chain = _hash(bytes.fromhex(self.chain), kind.encode(), numbers, payload)
        return Position(self.entry + 1, self.seq + count, chain.hex())


@dataclass(frozen=True)
class Entry:
    """One thing that happened: a block of features, a reset, or a restore of the named file."""

    kind: str
    count: int
    payload: bytes


@dataclass(frozen=True)
class Receipt:
    """What was answered to an idempotency key, and the hash of what was asked."""

    key: bytes
    asked: bytes
    first: int
    answer: bytes

    @property
    def seal(self) -> bytes:
        """Return the checksum of the receipt."""
        return _hash(self.key, self.asked, struct.pack("<q", self.first), self.answer)


class Journal:
    """The entries and receipts of one stream. One thread at a time may use it."""

    def __init__(self, path: Path, start: Position) -> None:
        self.path, self.start = path, start
        refuse_holes(path.with_name(path.name + "-wal"))
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._check_version()
            self._db.executescript(OPEN)
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise damaged(path, error) from error

    def append(
        self, at: Position, entry: Entry, receipts: Sequence[Receipt] = (), *, forget: Forget | None = None
    ) -> Position:
        """Write one entry and its receipts, drop what may be forgotten, wait for the disk, and return the new point."""
        after = at.after(entry.kind, entry.count, entry.payload)
        row = (after.entry, entry.kind, at.seq, entry.count, entry.payload, bytes.fromhex(after.chain))
        seals = [(one.key, one.asked, one.first, one.answer, one.seal) for one in receipts]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
            self._db.executemany("INSERT INTO receipts (key, asked, first, answer, seal) VALUES (?, ?, ?, ?, ?)", seals)
            if forget:
                forget.run(self._db)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return after

    def receipt(self, key: bytes) -> Receipt | None:
        """Return what was answered to a key, if anything was and is still remembered."""
        row = self._db.execute("SELECT key, asked, first, answer, seal FROM receipts WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        found = Receipt(*row[:4])
        if found.seal != row[4]:
            raise damaged(self.path, "a receipt's checksum differs")
        return found

    def replay(self, after: Position) -> Iterator[tuple[Entry, Position]]:
        """Yield every entry after a point with the point behind it, refusing what is not as it was written."""
        try:
            at = self._anchored(after)
            rows = self._db.execute("SELECT * FROM entries WHERE id > ? ORDER BY id", (after.entry,))
            for number, kind, first, count, payload, chain in rows:
                entry, here = Entry(kind, count, payload), at
                at = here.after(kind, count, payload)
                if (number, first, chain.hex()) != (at.entry, here.seq, at.chain):
                    raise damaged(self.path, f"entry {here.entry + 1} is missing or altered")
                yield entry, at
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def note(self, name: str) -> str | None:
        """Return what was noted under a name."""
        row = self._db.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def put_note(self, name: str, value: str) -> None:
        """Note something about the journal as a whole."""
        self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))

    def size(self) -> int:
        """Return the bytes the journal takes on disk."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Let go of the files; what was appended stays."""
        self._db.close()

    def _check_version(self) -> None:
        """Refuse a file of another format before anything is written to it."""
        found = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        is_new = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if is_new or found == VERSION:
            return
        self._db.close()
        remedy = "a newer unseen wrote it, install that" if found > VERSION else "open it with the unseen it is from"
        raise StateError(f"expected a journal of format {VERSION} in {self.path.name}, got format {found}; {remedy}")

    def _anchored(self, after: Position) -> Position:
        if after == self.start:
            return after
        row = self._db.execute("SELECT chain FROM entries WHERE id = ?", (after.entry,)).fetchone()
        if row is None or row[0].hex() != after.chain:
            raise damaged(self.path, f"entry {after.entry}, which a snapshot stands on, is missing or altered")
        return after


@dataclass(frozen=True)
class Forget:
    """What is no longer needed: entries before one that a snapshot stands on, samples and receipts beyond a count."""

    entry: int
    seq: int
    receipts: int

    def run(self, db: sqlite3.Connection) -> None:
        """Delete inside the transaction that is open; freed pages are used again, so the file stops growing."""
        db.execute("DELETE FROM entries WHERE id < ? AND first + count <= ?", (self.entry, self.seq))
        db.execute("DELETE FROM receipts WHERE id <= (SELECT max(id) FROM receipts) - ?", (self.receipts,))


class Volatile(Journal):
    """A journal that keeps nothing: for benchmarks and trials."""

    def __init__(self, start: Position) -> None:
        self.path, self.start = Path("nowhere"), start

    def append(
        self, at: Position, entry: Entry, receipts: Sequence[Receipt] = (), *, forget: Forget | None = None
    ) -> Position:
        """Return the new point."""
        return Position(at.entry + 1, at.seq + entry.count, at.chain)

    def receipt(self, key: bytes) -> Receipt | None:
        """Remember nothing."""
        return None

    def replay(self, after: Position) -> Iterator[tuple[Entry, Position]]:
        """Yield nothing."""
        return iter(())

    def note(self, name: str) -> str | None:
        """Remember nothing."""
        return None

    def put_note(self, name: str, value: str) -> None:
        """Remember nothing."""

    def close(self) -> None:
        """Have nothing to let go of."""


def refuse_holes(wal: Path) -> None:
    """Refuse a write-ahead log with a damaged frame before others that were committed.

    SQLite takes the first bad frame for the end of the log, as it must after a torn write, and would drop the
    acknowledged blocks behind it without a word.
    """
    data = wal.read_bytes() if wal.exists() else b""
    if len(data) < 32:
        return
    magic, _, page, _, *salt = struct.unpack(">6I", data[:24])
    order = ">" if magic & 1 else "<"
    sums = _wal_sum(data[:24], order, (0, 0))
    if sums != struct.unpack(">2I", data[24:32]):
        raise damaged(wal, "its header is altered")
    commits, bad = 0, False
    for start in range(32, len(data) - page - 23, page + 24):
        frame = data[start : start + 24 + page]
        _, size, *rest = struct.unpack(">6I", frame[:24])
        if rest[:2] != salt:
            break
        if not bad:
            sums = _wal_sum(frame[24:], order, _wal_sum(frame[:8], order, sums))
            bad = sums != tuple(rest[2:])
        commits += bad and size > 0
    if commits > 1:  # one may be a torn last block, which nobody was told of
        raise damaged(wal, f"{commits} committed blocks stand behind a damaged page")


def _wal_sum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksum of 8n bytes: a += even + b, b += odd + a for each pair of words.

    That is linear, so n steps are one product with powers of [[1, 1], [1, 2]] modulo 2^32, where numpy wraps by itself.
    """
    words = np.frombuffer(data, f"{order}u4").astype(np.uint32)
    powers = _powers(len(words) // 2)
    even, odd = words[::2], words[1::2]
    by = powers[-2::-1]  # the last pair is multiplied by the zeroth power
    a = (by[:, 0, 0] + by[:, 0, 1]) * even + by[:, 0, 1] * odd
    b = (by[:, 1, 0] + by[:, 1, 1]) * even + by[:, 1, 1] * odd
    start = powers[-1] * np.array(sums, np.uint32)
    totals = (int(a.sum(dtype=np.uint32)) + int(start[0].sum()), int(b.sum(dtype=np.uint32)) + int(start[1].sum()))
    return totals[0] & WORD, totals[1] & WORD


@lru_cache(8)
def _powers(count: int) -> UInt32[np.ndarray, "n 2 2"]:
    powers = [(1, 0, 0, 1)]
    for _ in range(count):
        p, q, r, s = powers[-1]
        powers.append((p + q & WORD, p + 2 * q & WORD, r + s & WORD, r + 2 * s & WORD))
    return np.array(powers, np.uint32).reshape(-1, 2, 2)


def damaged(path: Path, why: object) -> StateError:
    """Return the error for a journal that cannot be trusted."""
    return StateError(f"expected the journal {path.name} as it was written, got damage ({why}); restore a backup")


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
