"""Check SQLite's write-ahead log before SQLite reads it: a damaged page must not pass for the end of the log."""

import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import UInt32

from unseen.errors import StateError

WORD = 0xFFFFFFFF


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
    sums = _checksum(data[:24], order, (0, 0))
    if sums != struct.unpack(">2I", data[24:32]):
        raise journal_damage(wal, "its header is altered")
    commits, bad = 0, False
    for start in range(32, len(data) - page - 23, page + 24):
        frame = data[start : start + 24 + page]
        _, size, *rest = struct.unpack(">6I", frame[:24])
        if rest[:2] != salt:
            break
        if not bad:
            sums = _checksum(frame[24:], order, _checksum(frame[:8], order, sums))
            bad = sums != tuple(rest[2:])
        commits += bad and size > 0
    if commits > 1:  # one may be a torn last block, which was never acknowledged
        raise journal_damage(wal, f"{commits} committed blocks stand behind a damaged page")


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of 8n bytes: a += even + b, b += odd + a for each pair of words.

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


def journal_damage(path: Path, why: object) -> StateError:
    """The error for a journal that cannot be trusted."""
    return StateError(f"expected the journal {path.name} as it was written, got damage ({why}); restore a backup")
