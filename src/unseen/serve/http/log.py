"""Access and audit log: JSON lines without secrets, written by a thread so that no request waits for a disk."""

import json
import logging
import queue
from datetime import UTC, datetime
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

ACCESS, AUDIT = "access.jsonl", "audit.jsonl"

log = logging.getLogger("unseen.serve")


class LogFile(RotatingFileHandler):
    """One of the two files, and three older ones; lines that cannot be written are counted."""

    def __init__(self, path: Path, most: int) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        super().__init__(path, maxBytes=most, backupCount=3, delay=True)
        self.failed = 0
        self.addFilter(logging.Filter(path.name))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a line that could not be written, and say so once."""
        if not self.failed:
            log.warning("no log in %s: lines are dropped and counted", self.baseFilename)
        self.failed += 1


class RequestLog:
    """Files access.jsonl, one line per request, and audit.jsonl, one line per change that a key was used for.

    At most `waiting` lines wait for the disk, and a file holds `most` bytes.
    """

    def __init__(self, folder: Path | None, *, waiting: int = 20_000, most: int = 64 << 20) -> None:
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(waiting)
        self._late = 0
        self._files = [LogFile(folder / name, most) for name in (ACCESS, AUDIT)] if folder else []
        self._listener = QueueListener(self._lines, *self._files) if self._files else None
        if self._listener:
            self._listener.start()

    @property
    def dropped(self) -> int:
        """Lines that were not written: the disk was too slow, or failed."""
        return self._late + sum(file.failed for file in self._files)

    def write(self, file: str, **fields: Any) -> None:
        """Note something with the time; what cannot be written in time is dropped."""
        if self._listener:
            try:
                self._lines.put_nowait(logging.makeLogRecord({"name": file, "msg": line(**fields)}))
            except queue.Full:
                self._late += 1

    def close(self) -> None:
        """Write what waits and end the thread."""
        if self._listener:
            self._listener.stop()
        for file in self._files:
            file.close()


def line(**fields: Any) -> str:
    """One line of JSON with the time; what a terminal could take for a command is escaped."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, **fields}, separators=(",", ":"))


def append(path: Path, text: str) -> None:
    """Add a line to a log, in a folder that only its owner reads."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with path.open("a") as file:
        print(text, file=file)
