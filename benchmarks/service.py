"""How many durable observes a second the service acknowledges, beside what the disk itself can do.

    python benchmarks/service.py                     # a table
    python benchmarks/service.py --json              # one JSON object per line

Everything is on loopback and bounded by --seconds per case; server and load share the machine's cores. Callers reuse
connections and send float32 rows. Loads take turns, --rounds times; before each, as many bytes as a sample has are
appended to a file and waited for, again and again: `of disk` is observes for each of those.

Every answer is checked: each sample is answered once, under a number of its own, and the margins of the first samples
are those of a session that observes them in that order.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from unseen import LabelSpace, Session, detectors
from unseen.serve.client import Client
from unseen.serve.run import run
from unseen.serve.settings import Settings
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream
from unseen_bench.run.timing import percentiles

SPAWN = multiprocessing.get_context("spawn")
LOADS = ("batched", "single", "one")  # of requests with many samples or one; of one caller
VERIFIED = 1024  # samples whose margins are computed again


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--detector", default=detectors.DEFAULT)
    parser.add_argument("--clients", type=int, default=8, help="callers that send batches")
    parser.add_argument("--batch", type=int, default=64, help="samples in their requests")
    parser.add_argument("--concurrency", type=int, default=32, help="callers that send one sample at a time")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--compute", type=int, default=1, help="cores that compute one block, of every server")
    parser.add_argument("--folder", default=None, help="where the journal goes; a real disk, not a memory file system")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    arguments = command.parse(parser)
    command.show(measure_all(arguments), arguments, table)


def measure_all(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    z = stream(labels, 4096)
    loads = {
        "batched": (arguments.clients, arguments.batch),
        "single": (arguments.concurrency, 1),
        "one": (1, 1),
    }
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        space = Path(folder) / "space.safetensors"
        labels.save(space)
        for turn, name in product(range(arguments.rounds), arguments.loads):
            disk = fsyncs(Path(folder) / "appended", z[0].numpy().tobytes(), arguments.seconds / 4)
            row = measure(arguments, Path(folder) / f"{name}-{turn}", space, z, *loads[name])
            yield row | {"fsyncs_per_second": disk, "of_disk": row["per_second"] / disk}


def fsyncs(path: Path, data: bytes, seconds: float) -> float:
    """How often a second the disk says that it has what was appended to a file."""
    started, count = time.perf_counter(), 0
    with path.open("wb", buffering=0) as file:
        while (elapsed := time.perf_counter() - started) < seconds or not count:
            file.write(data)
            os.fsync(file.fileno())
            count += 1
    return count / elapsed


def measure(arguments: Arguments, data: Path, space: Path, z: torch.Tensor, clients: int, batch: int) -> Row:
    """How fast the service answered; `cpu_us` is its CPU time per sample, which other work hardly changes."""
    ours, theirs = SPAWN.Pipe()
    options = (theirs, data, space, arguments.detector, arguments.compute)
    process = SPAWN.Process(target=service, args=options, daemon=True)
    process.start()
    if not ours.poll(120):
        sys.exit("the service did not start")
    host, path = ours.recv()
    try:
        warm, load = (Load(host, observes(host, path, z, batch), clients) for _ in range(2))
        warm.run(min(2.0, arguments.seconds))
        before = cpu_seconds(process.pid)
        elapsed = load.run(arguments.seconds)
        spent = cpu_seconds(process.pid) - before
    finally:
        process.kill()
        process.join()
    errors, samples = load.errors + warm.errors, len(load.times) * batch
    if not samples:
        sys.exit("the service answered nothing")
    if not errors:
        verify(warm.answers + load.answers, LabelSpace.load(space), z, arguments.detector, batch)
    row = {"clients": clients, "batch": batch, "seconds": elapsed, "samples": samples}
    row |= {"per_second": samples / elapsed, **percentiles(load.times), "cpu_us": 1e6 * spent / samples}
    return row | {"errors": errors}


def service(pipe: Connection, data: Path, space: Path, detector: str, threads: int) -> None:
    def announce(text: str) -> None:
        threading.Thread(target=create, args=(text.split()[2],), daemon=True).start()

    def create(url: str) -> None:
        with Client(url, retries=20) as client:
            client.ask("GET", "/readyz", again=True)
            remote = client.create(space, detector=detector)
        pipe.send((url.removeprefix("http://"), f"/v1/streams/{remote.id}/observe"))

    settings = Settings(data, encoder=None, compute=threads)
    run(settings, port=0, demo=False, announce=announce)


def observes(host: str, path: str, z: torch.Tensor, batch: int) -> list[bytes]:
    """Requests that observe batches of samples as float32 rows."""
    bodies = [part.numpy().tobytes() for part in z.split(batch) if len(part) == batch]
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/octet-stream\r\n"
    return [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


@dataclass
class Caller:
    """One connection that asks again as soon as it is answered."""

    socket: socket.socket
    number: int  # of the body it sends
    started: float = 0.0
    buffer: bytes = b""


class Load:
    """Callers in one thread that keep a server busy, and everything it answered."""

    def __init__(self, host: str, requests: list[bytes], clients: int) -> None:
        self.requests = requests
        self.address = (host.split(":")[0], int(host.split(":")[1]))
        self.clients = clients
        self.times: list[float] = []
        self.answers: list[tuple[int, bytes]] = []  # which body, what was said of it
        self.errors = 0

    def run(self, seconds: float) -> float:
        """For how long the callers called; the answers to the last requests count and are waited for."""
        selector, started = selectors.DefaultSelector(), time.perf_counter()
        for number in range(self.clients):
            connection = socket.create_connection(self.address, timeout=60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller = Caller(connection, number)
            selector.register(connection, selectors.EVENT_READ, caller)
            self._ask(caller)
        while selector.get_map():
            for key, _ in selector.select(60):
                if self._heard(key.data):
                    key.data.number += self.clients
                    if time.perf_counter() - started < seconds:
                        self._ask(key.data)
                        continue
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
        return time.perf_counter() - started

    def _ask(self, caller: Caller) -> None:
        caller.started, caller.buffer = time.perf_counter(), b""
        caller.socket.sendall(self.requests[caller.number % len(self.requests)])

    def _heard(self, caller: Caller) -> bool:
        came = caller.socket.recv(1 << 20)
        if not came:
            raise ConnectionError("the server hung up")
        caller.buffer += came
        head, found, body = caller.buffer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE) if found else None
        if length is None or len(body) < int(length[1]):
            return False
        self.times.append(time.perf_counter() - caller.started)
        if head.startswith(b"HTTP/1.1 200"):
            self.answers.append((caller.number % len(self.requests), body))
        else:
            self.errors += 1
        return True


def cpu_seconds(pid: int | None) -> float:
    """The seconds of CPU time a process has used, by Linux's count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def verify(answers: list[tuple[int, bytes]], labels: LabelSpace, z: torch.Tensor, detector: str, batch: int) -> None:
    """Stop the benchmark if a sample was lost, answered twice, or judged otherwise than a session judges it."""
    said: dict[int, tuple[int, float]] = {}
    for number, body in answers:
        rows = json.loads(body)["verdicts"]
        if len(rows) != batch:
            sys.exit(f"{len(rows)} verdicts for {batch} samples")
        said |= {row["seq"]: (number * batch + place, row["margin"]) for place, row in enumerate(rows)}
    if sorted(said) != list(range(len(answers) * batch)):
        sys.exit("samples were lost or answered twice")
    first = min(VERIFIED, len(said))
    places, margins = zip(*(said[seq] for seq in range(first)), strict=True)
    session = Session(detectors.make(detector, labels))
    expected = session.observe(z[torch.tensor(places)]).margin
    if not torch.allclose(torch.tensor(margins), expected, rtol=1e-3, atol=1e-2):
        gap = float((torch.tensor(margins) - expected).abs().max())
        sys.exit(f"margins differ by up to {gap} from those of a session")


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("callers", "batch", "samples", "per second", "p50 ms", "p99 ms", "CPU µs", "errors", "fsyncs/s")
    numbers = ("clients", "batch", "samples", "per_second", "p50_ms", "p99_ms", "cpu_us", "errors", "fsyncs_per_second")
    cells = ((*(f"{row[name]:,.0f}" for name in numbers), f"{row['of_disk']:.2f}") for row in rows)
    yield from markdown_table((*heads, "of disk"), cells)
    yield f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; other work on the machine slows every row"


if __name__ == "__main__":
    main()
