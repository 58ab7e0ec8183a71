"""Which failures of a disk pass by themselves, and how they are worded."""

import errno
import sqlite3

from unseen.errors import ServiceError

DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS})
PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


def is_transient(error: sqlite3.Error) -> bool:
    """Whether SQLite failed for want of room or by the disk, which says nothing about the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING


def disk_is_full(error: object) -> ServiceError:
    """The error for a full or failing disk."""
    why = getattr(error, "strerror", None) or error  # without the path, which is nobody's business
    return ServiceError(507, f"expected room and a sound disk, got {why}; nothing was learned, try again")
