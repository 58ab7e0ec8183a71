"""Access and audit log: JSON lines without secrets, written by a thread so that no request waits for a disk."""

import json
import logging
import queue
from datetime import UTC, datetime
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

ACCESS, AUDIT = "access.jsonl", "audit.jsonl"
WAITING = 20_000  # lines that may wait for the disk; more are dropped and counted
BYTES, FILES = 64 << 20, 3  # of a log: size of a file, and how many older ones there are

log = logging.getLogger("unseen.serve")


class RequestLog:
    """Files access.jsonl, one line per request, and audit.jsonl, one line per change that a key was used for."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.dropped = folder, 0
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(WAITING)
        self._listener: QueueListener | None = None
        if folder is not None:
            self._listener = QueueListener(self._lines, *(self._file(folder / name) for name in (ACCESS, AUDIT)))
            self._listener.start()

    def write(self, file: str, **fields: Any) -> None:
        """Note something with the time; what cannot be written in time is dropped."""
        if self._listener:
            try:
                self._lines.put_nowait(logging.makeLogRecord({"name": file, "msg": line(**fields)}))
            except queue.Full:
                self.dropped += 1

    def close(self) -> None:
        """Write what waits and end the thread."""
        if self._listener:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()

    def _file(self, path: Path) -> logging.Handler:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        handler = RotatingFileHandler(path, maxBytes=BYTES, backupCount=FILES, delay=True)
        handler.addFilter(logging.Filter(path.name))
        handler.setFormatter(logging.Formatter("%(message)s"))
        handler.handleError = self._failed  # type: ignore[method-assign]
        return handler

    def _failed(self, record: logging.LogRecord) -> None:
        if not self.dropped:  # once
            log.warning("no log in %s: lines are dropped and counted", self.folder)
        self.dropped += 1


def line(**fields: Any) -> str:
    """One line of JSON with the time; what a terminal could take for a command is escaped."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, **fields}, separators=(",", ":"))


def append(path: Path, text: str) -> None:
    """Add a line to a log, in a folder that only its owner reads."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with path.open("a") as file:
        file.write(text + "\n")
