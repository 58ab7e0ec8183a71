"""How many durable observes a second the service acknowledges, beside a naive server.

    python benchmarks/service.py                     # a table
    python benchmarks/service.py --json              # one JSON object per line
    python benchmarks/service.py --rows restart      # from a kill to ready: service_restart.py

Everything is on loopback and bounded by --seconds per case; server and load share the machine's cores. `naive` observes
one sample at a time with the same detector and writes nothing. Callers reuse connections and send float32 rows.

Every answer is checked: each sample is answered once, under a number of its own, and the margins of the first samples
are those of a session that observes them in that order.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

import service_restart
from service_load import SPAWN, Load, cpu_seconds, observes, percentiles, service
from unseen import LabelSpace, Session, detectors
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream

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
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--rows", choices=ROWS, default="throughput")
    parser.add_argument("--cases", nargs="+", choices=service_restart.CASES, default=list(service_restart.CASES))
    parser.add_argument("--samples", type=int, default=100_000, help="of the restart with many samples: minutes")
    arguments = command.parse(parser)
    measured, shown = ROWS[arguments.rows]
    command.show(measured(arguments), arguments, shown)


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
        for clients, batch in (loads[name] for name in arguments.loads):
            for server in arguments.servers:
                yield measure(arguments, Path(folder), space, z, server, clients, batch)


def measure(
    arguments: Arguments, folder: Path, space: Path, z: torch.Tensor, server: str, clients: int, batch: int
) -> Row:
    """How fast one server answered; `cpu_us` is its CPU time per sample, which other work hardly changes."""
    ours, theirs = SPAWN.Pipe()
    options = (theirs, folder / f"{server}-{batch}", space, arguments.detector, server, arguments.compute)
    process = SPAWN.Process(target=SERVERS[server], args=options, daemon=True)
    process.start()
    if not ours.poll(120):
        sys.exit(f"the {server} server did not start")
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
        sys.exit(f"the {server} server answered nothing")
    if server != "naive" and not errors:
        verify(warm.answers + load.answers, LabelSpace.load(space), z, arguments.detector, batch)
    row = {"server": server, "clients": clients, "batch": batch, "seconds": elapsed, "samples": samples}
    row |= {"per_second": samples / elapsed, **percentiles(load.times), "cpu_us": 1e6 * spent / samples}
    return row | {"errors": errors}


def naive(pipe: Connection, data: Path, space: Path, detector: str, kind: str, threads: int) -> None:
    """Serve what a first version would be: a lock, one sample at a time, nothing on disk."""
    from unseen.serve.run import listening_socket

    session = Session(detectors.make(detector, LabelSpace.load(space)))
    lock = threading.Lock()
    app = FastAPI()

    def observe(body: bytes) -> list[dict[str, object]]:
        torch.set_num_threads(threads)
        with lock:
            z = torch.frombuffer(bytearray(body), dtype=torch.float32).view(-1, session.detector.labels.dim)
            return [session.observe(sample[None])[0]._asdict() for sample in z]

    @app.post("/observe")
    async def route(request: Request) -> list[dict[str, object]]:
        return await run_in_threadpool(observe, await request.body())

    listener = listening_socket("127.0.0.1", 0)
    pipe.send((f"127.0.0.1:{listener.getsockname()[1]}", "/observe"))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


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
    heads = ("server", "callers", "batch", "samples", "per second", "p50 ms", "p99 ms", "CPU µs", "errors")
    yield from markdown_table((*heads, "of naive"), (cells(row, rows) for row in rows))
    yield f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; other work on the machine slows every row"


def cells(row: Row, rows: list[Row]) -> tuple[str, ...]:
    alike = [other for other in rows if (other["clients"], other["batch"]) == (row["clients"], row["batch"])]
    rates = {other["server"]: other["per_second"] for other in alike}
    ratio = f"{row['per_second'] / rates['naive']:.2f}" if "naive" in rates else ""
    numbers = ("clients", "batch", "samples", "per_second", "p50_ms", "p99_ms", "cpu_us", "errors")
    return row["server"], *(f"{row[name]:,.0f}" for name in numbers), ratio


SERVERS: dict[str, Callable[..., None]] = {"durable": service, "naive": naive}
ROWS = {
    "throughput": (measure_all, table),
    "restart": (service_restart.measure_all, service_restart.table),
}

if __name__ == "__main__":
    main()
