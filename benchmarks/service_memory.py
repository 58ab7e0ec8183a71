"""Whether the memory of a service grows with what it is sent: an hour of traffic in a few minutes.

    python benchmarks/service.py --rows memory --samples 360000 --batch 256 --known 20 --negatives 200

100 samples a second for an hour, with idempotency keys, sent as fast as they are answered, and reads of everything that
is kept about them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from service_load import SPAWN, Load, observes, service
from soak import _resident
from unseen_bench.run import Row, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream

PARTS = 8
READS = ("", "/history", "/labels", "/snapshots", "/review")


def measure_all(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        space = Path(folder) / "space.safetensors"
        labels.save(space)
        ours, theirs = SPAWN.Pipe()
        options = (theirs, Path(folder) / "data", space, arguments.detector, "durable", arguments.compute)
        process = SPAWN.Process(target=service, args=options, daemon=True)
        process.start()
        try:
            host, path = ours.recv()
            requests = observes(host, path, stream(labels, 4096), arguments.batch)
            for part in range(1, PARTS + 1):
                _use(host, path, requests, arguments, arguments.samples // PARTS, part)
                yield {"samples": part * (arguments.samples // PARTS), "memory_mb": _resident(process.pid or 0) / 2**20}
        finally:
            process.kill()
            process.join()


def _use(host: str, path: str, requests: list[bytes], arguments: Arguments, samples: int, part: int) -> None:
    """Observe so many samples in requests that each have a key of their own, and read what there is to read."""
    count = -(-samples // arguments.batch)
    keyed = [_with_key(requests[number % len(requests)], f"{part}-{number}") for number in range(count)]
    for start in range(0, count, arguments.clients):
        load = Load(host, keyed[start : start + arguments.clients], arguments.clients)
        load.run(0)
        assert not load.errors
    for read in READS:
        httpx.get(f"http://{host}{path.removesuffix('/observe')}{read}", timeout=60).raise_for_status()


def _with_key(request: bytes, key: str) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    return head + f"\r\nidempotency-key: {key}\r\n\r\n".encode() + body


def table(rows: list[Row]) -> Iterator[str]:
    yield from markdown_table(
        ("samples", "memory MB"), ((f"{row['samples']:,}", f"{row['memory_mb']:,.0f}") for row in rows)
    )
