"""Use a service for minutes while everything that can go wrong does, and count what was lost.

    make soak                       # ten minutes
    make soak SOAK_SECONDS=120

Callers observe with idempotency keys and send again whatever was not answered. Meanwhile the service is killed, its
disk is full (a limit on the size of files) or slow (other writers that wait for it), bad clients call, slow ones do not
read, and the clock that log lines and keys read jumps. Every fault has its turn, and a kill comes at least every half
minute. At the end every acknowledged sample must be in the journal once, in its place.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import torch
from torch.nn.functional import normalize

from served import Service
from unseen.errors import ServiceError
from unseen.serve.client import Client, Record
from unseen_bench.run import Row, command
from unseen_bench.run.command import percentiles
from unseen_bench.run.synthetic import label_space

BUDGET = 1 << 30  # bytes of memory that the service may take at most
CALLERS, DIM = 6, 64
FAULTS = ("kill", "stop", "full_disk", "slow_disk", "bad_clients", "slow_readers", "clock_jump")


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = command.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        row = Soak(Path(folder), arguments.seed).run(arguments.seconds)
    command.show([row], arguments, lambda rows: [f"{name:>16}  {value}" for name, value in rows[0].items()])
    if row["lost"] or row["doubled"] or row["peak_memory_mb"] > BUDGET >> 20 or not row["kill"]:
        sys.exit(1)


class Soak:
    """A service, callers that keep count, and faults in a random order."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.choice, self.peak = folder, random.Random(seed), 0
        self.faults, self.killed, self.turns = dict.fromkeys(FAULTS, 0), time.monotonic(), list[str]()
        self.service = Service(folder, *WORDS, keys=False)
        self.url, self.port = self.service.url.geturl(), self.service.url.port or 0
        self.calls = Calls([self.service.create(label_space(20, 100, DIM)).rsplit("/", 1)[1] for _ in range(2)])

    def run(self, seconds: float) -> Row:
        """What was counted over so many seconds of faults."""
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(self.calls.call, self.url, number) for number in range(CALLERS)]
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                self._watched(self.choice.uniform(1, 4))
                fault = self._next_fault(min(20.0, seconds / 3))
                self.faults[fault] += 1
                getattr(self, fault)()
            self.calls.stopping.set()
        for caller in callers:
            caller.result()
        return self._result()

    def _next_fault(self, between: float) -> str:
        """A kill where there was none for so many seconds, else the next of all faults in a random order."""
        if not self.turns:
            self.turns = self.choice.sample(FAULTS, len(FAULTS))
        return "kill" if time.monotonic() - self.killed > between else self.turns.pop()

    def kill(self) -> None:
        self.killed = time.monotonic()
        self._again(signal.SIGKILL)

    def stop(self) -> None:
        self._again(signal.SIGTERM)

    def clock_jump(self) -> None:
        """Start the service again with a clock that is hours off."""
        self._again(signal.SIGKILL, jump=self.choice.choice([-7200.0, 7200.0]))

    def _again(self, how: int, jump: float = 0.0) -> None:
        self.service.stop(how)
        self.service = Service(self.folder, *WORDS, keys=False, port=self.port, jump=jump)

    def full_disk(self) -> None:
        """Let no file grow for a while: writes fail as on a disk without room, then there is room again."""
        largest = max(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        for size in (self.choice.choice([4096, largest]), resource.RLIM_INFINITY):
            resource.prlimit(self.service.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            self._watched(2)

    def slow_disk(self) -> None:
        """Make every wait for the disk long by writers that wait for it all the time."""
        ends = time.monotonic() + 3
        with ThreadPoolExecutor(3) as pool:
            for number in range(3):
                pool.submit(write_until, self.folder / f"noise-{number}", ends)
            self._watched(3)

    def bad_clients(self) -> None:
        """Send what is no request, half of one, or hang up in the middle."""
        half = f"POST /v1/streams/{self.calls.ids[0]}/observe HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n"
        for _ in range(40):
            with suppress(OSError), self.service.socket() as connection:
                connection.sendall(self.choice.randbytes(self.choice.randrange(1, 4000)))
                connection.sendall(half.encode())

    def slow_readers(self) -> None:
        """Ask for states and events, and read nothing of them for a while."""
        with ExitStack() as held:
            for path in [f"/v1/streams/{id}/{what}" for id in self.calls.ids for what in ("state", "events")] * 4:
                one = held.enter_context(self.service.socket())
                one.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            self._watched(3)

    def _watched(self, seconds: float) -> None:
        """Wait, and note how much memory the service takes meanwhile."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.peak = max(self.peak, self.service.memory())
            time.sleep(0.1)

    def _result(self) -> Row:
        with Client(self.url, retries=20) as client:
            counted = sum(client.stream(id).info()["seq"] for id in self.calls.ids)
        self.service.stop(signal.SIGTERM)
        lost, calls = self.calls.lost({id: self._journal(id) for id in self.calls.ids}), self.calls
        row: Row = {"requests": len(calls.times), "acknowledged": calls.samples, "lost": lost}
        row |= {"doubled": calls.twice + max(0, counted - calls.samples), **percentiles(calls.times)}
        return row | {"peak_memory_mb": self.peak >> 20, "refused": calls.refused, **self.faults}

    def _journal(self, id: str) -> torch.Tensor:
        """The samples in a stream's journal, read by nothing but SQLite."""
        with closing(sqlite3.connect(self.folder / "data" / "streams" / id / "journal.db")) as db:
            rows = db.execute("SELECT payload FROM entries WHERE kind = 'observe' ORDER BY id").fetchall()
        return torch.frombuffer(bytearray().join(row[0] for row in rows), dtype=torch.float32).view(-1, DIM)


# samples between snapshots, and how many stay in the journal: all of them, to be counted
WORDS = ("--encoder", "none", "--set", "every=2000", "--set", f"retain={10**7}")


class Calls:
    """Callers that send again what was not answered, under the same key, and note every acknowledged sample."""

    def __init__(self, ids: list[str]) -> None:
        self.ids, self.stopping, self.lock = ids, threading.Event(), threading.Lock()
        self.acknowledged: dict[tuple[str, int], torch.Tensor] = {}
        self.times: list[float] = []
        self.samples = self.refused = self.twice = 0

    def call(self, url: str, number: int) -> None:
        choice = random.Random(number)
        with Client(url, retries=0, timeout=10) as client:
            while not self.stopping.is_set():
                generator = torch.Generator().manual_seed(choice.randrange(1 << 30))
                z = normalize(torch.randn(choice.randint(1, 16), DIM, generator=generator), dim=-1)
                self._until_answered(client, choice.choice(self.ids), z)

    def _until_answered(self, client: Client, id: str, z: torch.Tensor) -> None:
        key, started = uuid.uuid4().hex, time.perf_counter()
        while True:
            try:
                rows = client.stream(id).observe(z, key=key)
            except (httpx.TransportError, ServiceError):
                with self.lock:
                    self.refused += 1
                time.sleep(0.05)
                continue
            return self._note(id, z, rows, time.perf_counter() - started)

    def _note(self, id: str, z: torch.Tensor, rows: list[Record], seconds: float) -> None:
        with self.lock:
            self.samples += len(rows)
            self.times.append(seconds)
            for row, sample in zip(rows, z, strict=True):
                self.twice += (id, row["seq"]) in self.acknowledged
                self.acknowledged[id, row["seq"]] = sample

    def lost(self, journals: dict[str, torch.Tensor]) -> int:
        """How many acknowledged samples are not in their place."""
        return sum(
            seq >= len(journals[id]) or not torch.equal(journals[id][seq], sample)
            for (id, seq), sample in self.acknowledged.items()
        )


def write_until(path: Path, ends: float) -> None:
    with path.open("wb") as file:
        while time.monotonic() < ends:
            file.seek(0)
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    path.unlink()


if __name__ == "__main__":
    main()
