"""What was answered to idempotency keys, so that a repeated request is answered and not learned again.

A block is written while it is computed, so its receipts come to the disk without their answers, and those with the next
entry. A kill in between loses no answer: to replay the block gives it again.
"""

import hashlib
import sqlite3
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from unseen.verdicts import VERDICT_DTYPE, VerdictArray

RECEIPT = 256  # bytes that a key takes in the journal, with its answer; of answers to many samples fewer are kept
UNANSWERED = b""  # in the place of the checksum


def hash_of(*parts: bytes) -> bytes:
    """16 bytes that depend on every part and on where one ends."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True)
class Receipt:
    """What was answered to an idempotency key, and the hash of the request; zeros while it is not answered."""

    key: bytes
    digest: bytes
    first: int
    answer: bytes
    is_answered: bool = True

    @classmethod
    def unanswered(cls, key: bytes, digest: bytes, first: int, count: int) -> "Receipt":
        """The receipt for samples, the first of them numbered `first`, that are being computed."""
        return cls(key, digest, first, bytes(count * VERDICT_DTYPE.itemsize), is_answered=False)

    def answered(self, first: int, block: VerdictArray) -> "Receipt":
        """The receipt with its verdicts, out of those of a block that begins with number `first`."""
        start, count = self.first - first, len(self.answer) // VERDICT_DTYPE.itemsize
        return replace(self, answer=block[start : start + count].tobytes(), is_answered=True)

    @property
    def verdicts(self) -> VerdictArray:
        """The verdicts of the answer."""
        return np.frombuffer(self.answer, VERDICT_DTYPE)

    @property
    def seal(self) -> bytes:
        """The checksum of the receipt."""
        if not self.is_answered:
            return UNANSWERED
        return hash_of(self.key, self.digest, struct.pack("<q", self.first), self.answer)


def forget_receipts(db: sqlite3.Connection, most: int) -> None:
    """Keep `most` receipts, and no more answers than those may take, in the transaction that is open."""
    samples = most * RECEIPT // VERDICT_DTYPE.itemsize
    db.execute("DELETE FROM receipts WHERE id <= (SELECT max(id) FROM receipts) - ?", (most,))
    db.execute("DELETE FROM receipts WHERE first < (SELECT max(first) FROM receipts) - ?", (samples,))


class Receipts:
    """The receipts of one journal: a table in its file, and the answers of its last block, which are not in it yet."""

    def __init__(self) -> None:
        self._answers: dict[bytes, Receipt] = {}

    def add(self, db: sqlite3.Connection, receipts: Iterable[Receipt]) -> None:
        """Write receipts, and the answers that are not yet written, in the transaction that is open."""
        late = [(one.answer, one.seal, key) for key, one in self._answers.items()]
        db.executemany("UPDATE receipts SET answer = ?, seal = ? WHERE key = ?", late)
        rows = [(one.key, one.digest, one.first, one.answer, one.seal) for one in receipts]
        db.executemany("INSERT INTO receipts (key, asked, first, answer, seal) VALUES (?, ?, ?, ?, ?)", rows)

    def added(self) -> None:
        """Take note that the transaction is on disk."""
        self._answers.clear()

    def answer(self, receipts: Iterable[Receipt]) -> None:
        """Keep answers to receipts that were written without."""
        self._answers |= {one.key: one for one in receipts}

    def __len__(self) -> int:
        """How many answers are not yet written."""
        return len(self._answers)

    def find(self, db: sqlite3.Connection, key: bytes) -> Receipt | None:
        """What was answered to a key, None where it is not known; refuse a row that was altered."""
        if key in self._answers:
            return self._answers[key]
        row = db.execute("SELECT key, asked, first, answer, seal FROM receipts WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        found = Receipt(*row[:4])
        if found.seal != row[4]:
            raise ValueError("a receipt's checksum differs")
        return found

    def unanswered(self, db: sqlite3.Connection) -> list[Receipt]:
        """The receipts on disk without an answer: the last ones, where the process was killed."""
        rows = db.execute("SELECT key, asked, first, answer, seal FROM receipts ORDER BY id DESC")
        last = takewhile(lambda row: row[4] == UNANSWERED, rows)
        return [Receipt(key, asked, first, answer, is_answered=False) for key, asked, first, answer, _ in last]
