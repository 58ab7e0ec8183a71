"""Use a service for minutes while everything that can go wrong does, and count what was lost.

    make soak                       # ten minutes
    make soak SOAK_SECONDS=120

Callers observe with idempotency keys and send again whatever was not answered. Meanwhile the service is killed, its
disk is full (a limit on the size of files) or slow (other writers that wait for it), bad clients call, slow ones do not
read, and the clock that log lines and keys read jumps. Every fault has its turn, and a kill comes at least every half
minute. At the end every acknowledged sample must be in the journal once, in its place.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from torch.nn.functional import normalize

from unseen.errors import ServiceError
from unseen.serve.client import Client
from unseen.serve.run import listening_socket, run
from unseen.serve.settings import Durability, Settings
from unseen_bench.run import Row, command
from unseen_bench.run.synthetic import label_space
from unseen_bench.run.timing import percentiles

SPAWN = multiprocessing.get_context("spawn")
ROOM = 12 << 20  # bytes a file may have while the disk counts as full
BUDGET = 1 << 30  # bytes of memory that the service may take at most
CALLERS = 6
FAULTS = ("kill", "stop", "full_disk", "slow_disk", "bad_clients", "slow_readers", "clock_jump")


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--detector", default="online")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=None, help="where the journal goes; a real disk")
    arguments = command.parse(parser)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        row = Soak(Path(folder), arguments.detector, arguments.seed).run(arguments.seconds)
    print(json.dumps(row) if arguments.json else "\n".join(f"{name:>16}  {value}" for name, value in row.items()))
    if row["lost"] or row["doubled"] or row["peak_memory_mb"] > BUDGET >> 20 or not row["kill"]:
        sys.exit(1)


class Soak:
    """A service, callers that keep count, and faults in a random order."""

    def __init__(self, folder: Path, detector: str, seed: int) -> None:
        self.folder, self.choice = folder, random.Random(seed)
        self.labels = label_space(20, 100, 64)
        self.labels.save(folder / "space")
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.faults, self.killed, self.turns = dict.fromkeys(FAULTS, 0), time.monotonic(), list[str]()
        self.calls = Calls(self.labels)
        self.peak = 0
        self.process = self._started()
        with Client(self.url, retries=20) as client:
            self.calls.ids = [client.create(folder / "space", detector=detector).id for _ in range(2)]

    def run(self, seconds: float) -> Row:
        """What was counted over so many seconds of faults."""
        threads = [threading.Thread(target=self.calls.call, args=(self.url, number)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._watched(self.choice.uniform(1, 4))
            fault = self._next_fault(min(20.0, seconds / 3))
            self.faults[fault] += 1
            getattr(self, fault)()
        self.calls.stopping.set()
        for thread in threads:
            thread.join(120)
        return self._result()

    def _next_fault(self, between: float) -> str:
        """A kill where there was none for so many seconds, else the next of all faults in a random order."""
        if not self.turns:
            self.turns = self.choice.sample(FAULTS, len(FAULTS))
        return "kill" if time.monotonic() - self.killed > between else self.turns.pop()

    def kill(self) -> None:
        self.killed = time.monotonic()
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self._again()

    def stop(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGTERM)
        self._again()

    def full_disk(self) -> None:
        """Let no file grow for a while: writes fail as on a disk without room, then there is room again."""
        largest = max((path.stat().st_size for path in self.folder.rglob("*") if path.is_file()), default=ROOM)
        self._limit_files(self.choice.choice([4096, largest]))
        self._watched(2)
        self._limit_files(resource.RLIM_INFINITY)

    def slow_disk(self) -> None:
        """Make every wait for the disk long by writers that wait for it all the time."""
        writers = [SPAWN.Process(target=_write, args=(self.folder / f"noise-{n}", 3.0), daemon=True) for n in range(3)]
        for writer in writers:
            writer.start()
        self._watched(3)
        for writer in writers:
            writer.join()

    def bad_clients(self) -> None:
        """Send what is no request, half of one, or hang up in the middle."""
        for _ in range(40):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                    connection.sendall(self.choice.randbytes(self.choice.randrange(1, 4000)))
                    path = f"/v1/streams/{self.calls.ids[0]}/observe"
                    connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n".encode())
            except OSError:
                continue

    def slow_readers(self) -> None:
        """Ask for states and events, and read nothing of them for a while."""
        with ExitStack() as held:
            for path in [f"/v1/streams/{id}/{what}" for id in self.calls.ids for what in ("state", "events")] * 4:
                one = held.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=5))
                one.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            self._watched(3)

    def clock_jump(self) -> None:
        """Start the service again with a clock that is hours off."""
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self._again(jump=self.choice.choice([-7200.0, 7200.0]))

    def _again(self, jump: float = 0.0) -> None:
        self.process.join(20)
        self.process = self._started(jump)

    def _started(self, jump: float = 0.0) -> Any:
        process = SPAWN.Process(target=_serve, args=(self.folder / "data", self.port, jump), daemon=True)
        process.start()
        _until_ready(self.url)
        return process

    def _limit_files(self, size: int) -> None:
        hard = resource.RLIM_INFINITY
        resource.prlimit(self.process.pid or 0, resource.RLIMIT_FSIZE, (size, hard))

    def _watched(self, seconds: float) -> None:
        """Wait, and note how much memory the service takes meanwhile."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.peak = max(self.peak, _resident(self.process.pid))
            time.sleep(0.1)

    def _result(self) -> Row:
        with Client(self.url, retries=20) as client:
            infos = {id: client.stream(id).info() for id in self.calls.ids}
        os.kill(self.process.pid or 0, signal.SIGTERM)
        self.process.join(20)
        lost, doubled = self.calls.compared({id: self._journal(id) for id in self.calls.ids})
        extra = sum(info["seq"] for info in infos.values()) - self.calls.samples
        row: Row = {"requests": self.calls.requests, "acknowledged": self.calls.samples, "lost": lost}
        row |= {"doubled": doubled + max(0, extra), **percentiles(self.calls.times)}
        return row | {"peak_memory_mb": self.peak >> 20, "refused": self.calls.refused, **self.faults}

    def _journal(self, id: str) -> torch.Tensor:
        """The samples in a stream's journal, read by nothing but SQLite."""
        with closing(sqlite3.connect(self.folder / "data" / "streams" / id / "journal.db")) as db:
            rows = db.execute("SELECT payload FROM entries WHERE kind = 'observe' ORDER BY id").fetchall()
        samples = np.frombuffer(bytearray().join(row[0] for row in rows), dtype=np.float32)
        return torch.from_numpy(samples).view(-1, self.labels.dim)


class Calls:
    """Callers that send again what was not answered, under the same key, and note every acknowledged sample."""

    def __init__(self, labels: Any) -> None:
        self.labels, self.ids = labels, list[str]()
        self.stopping, self.lock = threading.Event(), threading.Lock()
        self.acknowledged: dict[tuple[str, int], torch.Tensor] = {}
        self.times: list[float] = []
        self.requests = self.samples = self.refused = self.twice = 0

    def call(self, url: str, number: int) -> None:
        choice = random.Random(number)
        with Client(url, retries=0, timeout=10) as client:
            while not self.stopping.is_set():
                id, z = choice.choice(self.ids), samples(self.labels.dim, choice)
                self._until_answered(client, id, z)

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

    def _note(self, id: str, z: torch.Tensor, rows: list[dict[str, Any]], seconds: float) -> None:
        with self.lock:
            self.requests, self.samples = self.requests + 1, self.samples + len(rows)
            self.times.append(seconds)
            for row, sample in zip(rows, z, strict=True):
                self.twice += (id, row["seq"]) in self.acknowledged
                self.acknowledged[id, row["seq"]] = sample

    def compared(self, journals: dict[str, torch.Tensor]) -> tuple[int, int]:
        """How many acknowledged samples are not in their place, and how many numbers were given twice."""
        lost = 0
        for (id, seq), sample in self.acknowledged.items():
            lost += seq >= len(journals[id]) or not torch.equal(journals[id][seq], sample)
        return lost, self.twice


def samples(dim: int, choice: random.Random) -> torch.Tensor:
    """A few random unit vectors."""
    generator = torch.Generator().manual_seed(choice.randrange(1 << 30))
    return normalize(torch.randn(choice.randint(1, 16), dim, generator=generator), dim=-1)


def _serve(data: Path, port: int, jump: float) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file at its limit is an error, not the end
    if jump:
        real = time.time
        time.time = lambda: real() + jump
    durability = Durability(every=2000, retain=10**7)
    settings = Settings(data, encoder=None, durability=durability, logs=data / "logs")
    run(settings, port=port, demo=False, announce=len)


def _write(path: Path, seconds: float) -> None:
    ends = time.monotonic() + seconds
    with path.open("wb") as file:
        while time.monotonic() < ends:
            file.seek(0)
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    path.unlink()


def _until_ready(url: str, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit("the service did not get ready")


def _resident(pid: int | None) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _free_port() -> int:
    with listening_socket("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
