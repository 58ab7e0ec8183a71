"""How many durable observes a second the service acknowledges, beside what the disk itself can do.

    python benchmarks/service.py                     # a table
    python benchmarks/service.py --json              # one JSON object per line

Everything is on loopback and bounded by --seconds per case; server and load share the machine's cores. Callers reuse
connections and send float32 rows. Loads take turns, --rounds times; before each, as many bytes as a sample has are
appended to a file and waited for, again and again: `of disk` is observes for each of those. The journal lies where
temporary files do: TMPDIR should name a real disk, not a memory file system.

Every answer is checked: each sample is answered once, under a number of its own, and the margins of the first samples
are those of a session that observes them in that order.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import torch

from served import RAW, Service
from unseen import LabelSpace, Session
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
    parser.add_argument("--rounds", type=int, default=2)
    arguments = command.parse(parser)
    command.show(measure_all(arguments), arguments, table)


def measure_all(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, DIM)
    z = stream(labels, 4096)
    for _, (clients, batch) in product(range(arguments.rounds), LOADS):
        with tempfile.TemporaryDirectory() as folder:
            disk = fsyncs(Path(folder) / "appended", z[0].numpy().tobytes(), arguments.seconds / 4)
            with Service(Path(folder), "--encoder", "none") as service:
                row = measure(service, z, labels, clients, batch, arguments.seconds)
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


def measure(service: Service, z: torch.Tensor, labels: LabelSpace, clients: int, batch: int, seconds: float) -> Row:
    """How fast the service answered; `cpu_us` is its CPU time per sample, which other work hardly changes."""
    path, port = service.create(labels, settings=b'{"detector": "pooled"}'), service.url.port or 0
    bodies = [part.numpy().tobytes() for part in z.split(batch)]
    head = f"POST {path}/observe HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {service.keys['a']}\r\n"
    head += f"content-type: {RAW}\r\ncontent-length: {len(bodies[0])}\r\n\r\n"
    load = Load(port, [head.encode() + body for body in bodies])
    asyncio.run(load.run(clients, min(WARM, seconds)))
    load.times.clear()
    before, started = cpu_seconds(service.process.pid), time.perf_counter()
    asyncio.run(load.run(clients, seconds))
    took, spent = time.perf_counter() - started, cpu_seconds(service.process.pid) - before
    samples = len(load.times) * batch
    if not load.errors:
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


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("callers", "batch", "samples", "per second", "p50 ms", "p99 ms", "CPU µs", "errors", "fsyncs/s")
    numbers = ("clients", "batch", "samples", "per_second", "p50_ms", "p99_ms", "cpu_us", "errors", "fsyncs_per_second")
    cells = ((*(f"{row[name]:,.0f}" for name in numbers), f"{row['of_disk']:.2f}") for row in rows)
    yield from markdown_table((*heads, "of disk"), cells)
    yield f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; other work on the machine slows every row"


if __name__ == "__main__":
    main()
