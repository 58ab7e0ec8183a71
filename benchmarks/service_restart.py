"""How long a service takes from its start to ready, after a kill: many single samples, and many streams.

`python benchmarks/service.py --rows restart` prints it. Samples are observed by the store itself, as many as are
wanted, and the process that did so is left without a stop.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from service_load import SPAWN
from unseen import LabelSpace
from unseen.serve.http.service import Service
from unseen.serve.settings import Limits, Settings
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.folder import StreamConfig
from unseen_bench.run import Row, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream

CASES = {"many samples": 1, "many streams": 500}  # streams
TOLD = 1000  # samples after which it is told how far it is


def measure_all(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    for name in arguments.cases:
        streams = CASES[name]
        samples = arguments.samples if streams == 1 else 2 * streams
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            labels.save(Path(folder) / "space")
            options = (Path(folder), arguments.detector, streams, samples, arguments.compute)
            SPAWN.Process(target=_fill, args=options).start()
            for process in SPAWN.active_children():
                process.join()
            ours, theirs = SPAWN.Pipe()
            SPAWN.Process(target=_open, args=(theirs, Path(folder), arguments.compute)).start()
            yield {"case": name, "streams": streams, "samples": samples, **ours.recv()}


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("case", "streams", "single samples", "replayed", "ready after s", "CPU s", "resident MB")
    names = ("streams", "samples", "replayed", "ready_s", "cpu_s", "resident_mb")
    yield from markdown_table(
        heads, ((row["case"], *(f"{row[name]:,.1f}".removesuffix(".0") for name in names)) for row in rows)
    )


def _settings(folder: Path, compute: int) -> Settings:
    return Settings(
        folder / "data",
        encoder=None,
        compute=compute,
        limits=Limits(streams=10_000, memory_each=1 << 40, memory=1 << 40),
    )


def _fill(folder: Path, detector: str, streams: int, samples: int, compute: int) -> None:
    torch.set_num_threads(compute)
    labels, service = LabelSpace.load(folder / "space"), Service(_settings(folder, compute))
    opened = [service.store.create(labels, StreamConfig("", "", "*", detector)).opened for _ in range(streams)]
    z = stream(labels, 4096)
    for number in range(samples):
        if number % TOLD == 0:
            print(f"\r{number:,} of {samples:,} samples observed", end="", file=sys.stderr, flush=True)
        one = opened[number % streams]
        one.observe([sample_batch(labels, z[number % len(z)][None])])
        service.store.snapshot_if_due(one)
    os._exit(0)


def _open(pipe: Any, folder: Path, compute: int) -> None:
    started, spent = time.perf_counter(), time.process_time()
    service = Service(_settings(folder, compute))
    service.store.open_all()
    replayed = sum(entry.opened.replayed for entry in service.store.entries.values())
    row = {"replayed": replayed, "ready_s": time.perf_counter() - started, "cpu_s": time.process_time() - spent}
    pipe.send(row | {"resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10})
    os._exit(0)
