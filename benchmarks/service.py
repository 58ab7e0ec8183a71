"""How many durable observes a second the service acknowledges, beside no durability and beside a naive server.

    python benchmarks/service.py                     # a table
    python benchmarks/service.py --json              # one JSON object per line

Everything is on loopback and bounded by --seconds per case; server and load share the machine's cores. `naive` observes
one sample at a time with the same detector and writes nothing. The service's own tests decide whether it is right.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from speed import label_space, stream
from unseen import LabelSpace, Session, detectors
from unseen.serve.streams import DEFAULT

FORKS = multiprocessing.get_context("spawn")
RAW = {"content-type": "application/octet-stream"}


@dataclass(frozen=True)
class Row:
    """One case: who was asked, how, and how fast the answers came."""

    server: str
    clients: int
    batch: int
    seconds: float
    samples: int
    per_second: float
    p50_ms: float
    p99_ms: float
    errors: int


def main() -> None:
    arguments = parsed()
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    z = stream(labels, 4096)
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        space = Path(folder) / "space.safetensors"
        labels.save(space)
        for clients, batch in ((arguments.clients, arguments.batch), (arguments.concurrency, 1)):
            for server in ("durable", "volatile", "naive"):
                row = measured(arguments, Path(folder), space, z, server, clients, batch)
                rows.append(row)
                if arguments.json:
                    print(json.dumps(asdict(row)), flush=True)
    if not arguments.json:
        show(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--detector", default=DEFAULT)
    parser.add_argument("--clients", type=int, default=4, help="callers that send batches")
    parser.add_argument("--batch", type=int, default=32, help="samples in their requests")
    parser.add_argument("--concurrency", type=int, default=32, help="callers that send one sample at a time")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--folder", default=None, help="where the journal goes; a real disk, not a memory file system")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measured(
    arguments: argparse.Namespace, folder: Path, space: Path, z: torch.Tensor, server: str, clients: int, batch: int
) -> Row:
    ours, theirs = FORKS.Pipe()
    target = naive if server == "naive" else service
    data = folder / f"{server}-{batch}"
    process = FORKS.Process(target=target, args=(theirs, data, space, arguments.detector, server), daemon=True)
    process.start()
    if not ours.poll(120):
        sys.exit(f"the {server} server did not start")
    host, path = ours.recv()
    try:
        load(host, path, z, clients, batch, min(2.0, arguments.seconds))  # warm
        times, errors, elapsed = load(host, path, z, clients, batch, arguments.seconds)
    finally:
        process.kill()
        process.join()
    if not times:
        sys.exit(f"the {server} server answered nothing")
    samples = len(times) * batch
    cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return Row(server, clients, batch, elapsed, samples, samples / elapsed, 1e3 * cuts[49], 1e3 * cuts[98], errors)


def service(pipe: Connection, data: Path, space: Path, detector: str, kind: str) -> None:
    from unseen.serve.app import Settings
    from unseen.serve.client import Client
    from unseen.serve.run import run
    from unseen.serve.stream import Durability

    def announce(text: str) -> None:
        threading.Thread(target=create, args=(text.split()[2],), daemon=True).start()

    def create(url: str) -> None:
        with Client(url, retries=20) as client:
            client.ask("GET", "/readyz", again=True)
            remote = client.create(space, detector=detector)
        pipe.send((url.removeprefix("http://"), f"/v1/streams/{remote.id}/observe"))

    settings = Settings(data, encoder=None, durability=Durability(volatile=kind == "volatile"))
    run(settings, port=0, demo=False, announce=announce)


def naive(pipe: Connection, data: Path, space: Path, detector: str, kind: str) -> None:
    """Serve what a first version would be: a lock, one sample at a time, nothing on disk."""
    from unseen.serve.run import bound

    session = Session(detectors.make(detector, LabelSpace.load(space)))
    lock = threading.Lock()
    app = FastAPI()

    def observe(body: bytes) -> list[dict[str, object]]:
        with lock:
            z = torch.frombuffer(bytearray(body), dtype=torch.float32).view(-1, session.detector.labels.dim)
            return [session.observe(sample[None])[0]._asdict() for sample in z]

    @app.post("/observe")
    async def route(request: Request) -> list[dict[str, object]]:
        return await run_in_threadpool(observe, await request.body())

    listener = bound("127.0.0.1", 0)
    pipe.send((f"127.0.0.1:{listener.getsockname()[1]}", "/observe"))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def load(
    host: str, path: str, z: torch.Tensor, clients: int, batch: int, seconds: float
) -> tuple[list[float], int, float]:
    """Return how long each answered request took, how many failed, and for how long the callers called."""
    bodies = [part.numpy().tobytes() for part in z.split(batch) if len(part) == batch]
    stop = time.perf_counter() + seconds
    times: list[float] = []
    errors: list[int] = []

    def call(first: int) -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        number = first
        while time.perf_counter() < stop:
            started = time.perf_counter()
            connection.request("POST", path, bodies[number % len(bodies)], RAW)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                times.append(time.perf_counter() - started)
            else:
                errors.append(answer.status)
            number += clients
        connection.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, len(errors), time.perf_counter() - started


def show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "server", "callers", "batch", "samples", "per second", "p50 ms", "p99 ms", "errors", "of volatile", "of naive"
    )
    for row in rows:
        beside = {other.server: other.per_second for other in rows if other.batch == row.batch}
        ratios = (f"{row.per_second / beside[name]:.2f}" for name in ("volatile", "naive"))
        numbers = (f"{row.per_second:,.0f}", f"{row.p50_ms:.0f}", f"{row.p99_ms:.0f}", str(row.errors))
        table.add_row(row.server, str(row.clients), str(row.batch), f"{row.samples:,}", *numbers, *ratios)
    Console().print(table)


if __name__ == "__main__":
    main()
