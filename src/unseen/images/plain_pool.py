"""Processes that read plain JPEG files: threads would take turns with the one that keeps a GPU busy.

They are started as programs, not forked and not by multiprocessing: the GPU is in use, and a script without a main
guard must run. They end when this process does, and read nothing that it could not read itself.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import UInt8

from unseen.images.plain_worker import FOUND, LENGTH

# with the paths that modules are imported from here; another process group, because Ctrl-C is for this process
PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from unseen.images.plain_worker import main; main()"
PIPE = 1 << 18  # bytes that wait in a pipe: larger than Linux has it, for fewer turns
log = logging.getLogger(__name__)


def can_start() -> bool:
    """Whether this process knows a Python to start: a program that is frozen would start itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class PlainFiles(NamedTuple):
    """The bytes of some files one after another; of each file how many, width and height: zeros where it is left."""

    data: UInt8[np.ndarray, " bytes"]
    found: list[tuple[int, int, int]]


class PlainPool:
    """Reads files in as many processes as threads ask at a time."""

    def __init__(self, workers: int) -> None:
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker() for _ in range(workers)]
        for worker in self._all:
            self._free.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.close()

    def read(self, paths: Sequence[str]) -> PlainFiles:
        """What is in files; those that are not plain, and those of a process that ended, are left."""
        worker = self._free.get()
        try:
            return worker.read(paths)
        finally:
            self._free.put(worker)


class _Worker:
    """One process, started when it is first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._has_ended = False

    def read(self, paths: Sequence[str]) -> PlainFiles:
        """What is in files; nothing once the process has ended."""
        if not self._has_ended:
            try:
                return self._ask(paths)
            except (OSError, EOFError) as error:
                self._has_ended = True
                log.warning("a process that reads files has ended (%s); threads read instead, which is slower", error)
                self.close()
        return PlainFiles(np.empty(0, np.uint8), [(0, 0, 0)] * len(paths))

    def _ask(self, paths: Sequence[str]) -> PlainFiles:
        self._process = process = self._process or _start()
        names = b"\0".join(path.encode(errors="surrogateescape") for path in paths)
        assert process.stdin is not None
        process.stdin.write(LENGTH.pack(len(names)) + names)
        process.stdin.flush()
        found = list(FOUND.iter_unpack(_received(process, FOUND.size * len(paths)).data))
        return PlainFiles(_received(process, sum(size for size, _, _ in found)), found)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):  # a request that was not read
                    pipe.close()  # type: ignore[union-attr]


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, *sys.path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
    with suppress(ImportError, AttributeError, OSError):  # elsewhere than on Linux, or more than a user may have
        import fcntl

        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE)  # type: ignore[arg-type]
    return process


def _received(process: subprocess.Popen[bytes], size: int) -> UInt8[np.ndarray, " size"]:
    """The next bytes of an answer; other threads go on meanwhile."""
    data = np.empty(size, np.uint8)
    assert process.stdout is not None
    if process.stdout.readinto(data) < size:  # type: ignore[attr-defined]
        raise EOFError(f"exit status {process.wait()}")
    return data
