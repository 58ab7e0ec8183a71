"""Access and audit log: JSON lines without secrets, written by a thread so that no request waits for a disk."""

import json
import logging
import os
import queue
import threading
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ACCESS, AUDIT = "access.jsonl", "audit.jsonl"
WAITING = 20_000  # lines that may wait for the disk; more are dropped and counted
BYTES, FILES = 64 << 20, 4  # of a log: size of a file, and how many there are

log = logging.getLogger("unseen.serve")


class RequestLog:
    """Files access.jsonl, one line per request, and audit.jsonl, one line per change that a key was used for."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.dropped, self._failed = folder, 0, False
        self._lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(self, file: str, **fields: Any) -> None:
        """Note something with the time; what cannot be written in time is dropped."""
        if self.folder is None:
            return
        if self._lines.qsize() > WAITING:
            self.dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()
        self._lines.put((file, line(**fields)))

    def close(self) -> None:
        """Write what waits and end the thread."""
        if self._thread:
            self._lines.put(None)
            self._thread.join(2)

    def _run(self) -> None:
        is_open = True
        while is_open:
            parts = [self._lines.get()]
            while parts[-1] and not self._lines.empty():
                parts.append(self._lines.get())
            is_open = parts[-1] is not None
            texts: dict[str, list[str]] = defaultdict(list)
            for part in filter(None, parts):
                texts[part[0]].append(part[1])
            for file, lines in texts.items():
                self._append(file, lines)

    def _append(self, file: str, lines: list[str]) -> None:
        assert self.folder is not None
        try:
            append(self.folder / file, lines)
            self._failed = False
            if (self.folder / file).stat().st_size > BYTES:
                rotate(self.folder / file)
        except OSError as error:
            self.dropped += len(lines)
            if not self._failed:  # once, until it works again
                log.warning("no log: %s", error.strerror)
            self._failed = True


def line(**fields: Any) -> str:
    """One line of JSON with the time."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, **fields}, ensure_ascii=False, separators=(",", ":")) + "\n"


def append(path: Path, lines: list[str]) -> None:
    """Add lines to a file that only its owner reads."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with open(path, "a", opener=_private) as file:
        file.writelines(lines)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def rotate(path: Path) -> None:
    """Give a full file the number 1, its predecessors the next, and drop the oldest."""
    for number in range(FILES - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if newer.exists():
            newer.replace(older)
