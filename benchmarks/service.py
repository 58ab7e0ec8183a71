"""How many durable observes a second the service acknowledges, beside a naive server.

    python benchmarks/service.py                     # a table
    python benchmarks/service.py --json              # one JSON object per line

Everything is on loopback and bounded by --seconds per case; server and load share the machine's cores. `naive` observes
one sample at a time with the same detector and writes nothing. Callers reuse connections and send float32 rows.

Every answer is checked: each sample is answered once, under a number of its own, and the margins of the first samples
are those of a session that observes them in that order.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from served import RAW, Service
from unseen import LabelSpace, Session
from unseen.serve.run import listening_socket
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.command import Arguments, percentiles
from unseen_bench.run.synthetic import label_space, stream

DIM = 512
LOADS = ((8, 64), (32, 1), (1, 1))  # callers, and the samples in each of their requests
VERIFIED = 1024  # samples whose margins are computed again
WARM = 2.0  # seconds before anything is measured


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = command.parse(parser)
    command.show(measure_all(arguments), arguments, table)


def measure_all(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, DIM)
    z = stream(labels, 4096)
    for clients, batch in LOADS:
        for name, server in SERVERS.items():
            with tempfile.TemporaryDirectory() as folder, server(Path(folder), labels) as served:
                row = measure(served, z, labels if name == "durable" else None, clients, batch, arguments.seconds)
            yield {"server": name, **row}


@dataclass(frozen=True)
class Server:
    """Where a server is, what is in front of the rows of a request, and its process."""

    port: int
    head: str
    process: int


@contextmanager
def durable(folder: Path, labels: LabelSpace) -> Iterator[Server]:
    with Service(folder, "--encoder", "none") as service:
        path = service.create(labels, settings=b'{"detector": "pooled"}')
        head = f"POST {path}/observe HTTP/1.1\r\nauthorization: Bearer {service.keys['a']}\r\n"
        yield Server(service.url.port or 0, head, service.process.pid)


@contextmanager
def naive(folder: Path, labels: LabelSpace) -> Iterator[Server]:
    labels.save(folder / "space.safetensors")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve_naively, args=(theirs, folder / "space.safetensors"), daemon=True)
    process.start()
    try:
        yield Server(ours.recv(), "POST /observe HTTP/1.1\r\n", process.pid or 0)
    finally:
        process.kill()
        process.join()


def serve_naively(pipe: Connection, space: Path) -> None:
    """Serve what a first version would be: a lock, one sample at a time, nothing on disk."""
    session, lock, app = Session(LabelSpace.load(space)), threading.Lock(), FastAPI()
    torch.set_num_threads(1)

    def observe(body: bytes) -> list[dict[str, object]]:
        with lock:
            z = torch.frombuffer(bytearray(body), dtype=torch.float32).view(-1, DIM)
            return [session.observe(sample[None])[0]._asdict() for sample in z]

    @app.post("/observe")
    async def route(request: Request) -> list[dict[str, object]]:
        return await run_in_threadpool(observe, await request.body())

    listener = listening_socket("127.0.0.1", 0)
    pipe.send(listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


SERVERS: dict[str, Callable[[Path, LabelSpace], AbstractContextManager[Server]]] = {"durable": durable, "naive": naive}


def measure(
    server: Server, z: torch.Tensor, labels: LabelSpace | None, clients: int, batch: int, seconds: float
) -> Row:
    """How fast a server answered; `cpu_us` is its CPU time per sample, which other work hardly changes."""
    bodies = [part.numpy().tobytes() for part in z.split(batch)]
    head = f"{server.head}host: 127.0.0.1:{server.port}\r\ncontent-type: {RAW}\r\ncontent-length: {len(bodies[0])}\r\n"
    load = Load(server.port, [f"{head}\r\n".encode() + body for body in bodies])
    asyncio.run(load.run(clients, min(WARM, seconds)))
    load.times.clear()
    before, started = cpu_seconds(server.process), time.perf_counter()
    asyncio.run(load.run(clients, seconds))
    took, spent, samples = time.perf_counter() - started, cpu_seconds(server.process) - before, len(load.times) * batch
    if labels and not load.errors:
        verify(load.answers, labels, z, batch)
    row = {"clients": clients, "batch": batch, "seconds": took, "samples": samples, "per_second": samples / took}
    return row | {**percentiles(load.times), "cpu_us": 1e6 * spent / samples, "errors": load.errors}


@dataclass
class Load:
    """Callers on connections of their own that ask again as soon as they are answered, and everything they heard."""

    port: int
    requests: list[bytes]
    times: list[float] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)  # which request, what was said of it
    errors: int = 0

    async def run(self, clients: int, seconds: float) -> None:
        """Call for so long; the answers to the last requests are waited for."""
        ends = time.perf_counter() + seconds
        await asyncio.gather(*(self._call(number, clients, ends) for number in range(clients)))

    async def _call(self, number: int, step: int, ends: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        while (started := time.perf_counter()) < ends:
            place, number = number % len(self.requests), number + step
            writer.write(self.requests[place])
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            assert length
            body = await reader.readexactly(int(length[1]))
            self.times.append(time.perf_counter() - started)
            self.errors += not head.startswith(b"HTTP/1.1 200")
            self.answers.append((place, body))
        writer.close()


def cpu_seconds(pid: int) -> float:
    """The seconds of CPU time a process has used, by Linux's count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def verify(answers: list[tuple[int, bytes]], labels: LabelSpace, z: torch.Tensor, batch: int) -> None:
    """Stop the benchmark if a sample was lost, answered twice, or judged otherwise than a session judges it."""
    said: dict[int, tuple[int, float]] = {}
    for number, body in answers:
        rows = json.loads(body)["verdicts"]
        said |= {row["seq"]: (number * batch + place, row["margin"]) for place, row in enumerate(rows)}
    if sorted(said) != list(range(len(answers) * batch)):
        sys.exit("samples were lost or answered twice")
    places, margins = zip(*(said[seq] for seq in range(min(VERIFIED, len(said)))), strict=True)
    expected = Session(labels).observe(z[torch.tensor(places)]).margin
    if not torch.allclose(torch.tensor(margins), expected, rtol=1e-3, atol=1e-2):
        gap = float((torch.tensor(margins) - expected).abs().max())
        sys.exit(f"margins differ by up to {gap} from those of a session")


HEADS = ("server", "callers", "batch", "samples", "per second", "p50 ms", "p99 ms", "CPU µs", "errors", "of naive")


def table(rows: list[Row]) -> Iterator[str]:
    lines = []
    for row in rows:
        rates = {one["server"]: one["per_second"] for one in rows if one["clients"] == row["clients"]}
        numbers = ("clients", "batch", "samples", "per_second", "p50_ms", "p99_ms", "cpu_us", "errors")
        cells = [f"{row[name]:,.0f}" for name in numbers]
        lines.append((row["server"], *cells, f"{row['per_second'] / rates['naive']:.2f}"))
    yield from markdown_table(HEADS, lines)
    yield f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; other work on the machine slows every row"


if __name__ == "__main__":
    main()
