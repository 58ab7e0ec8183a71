"""How long a tenant waits for single samples, alone and beside a neighbour that asks for all it can, turn by turn.

`python benchmarks/service.py --rows fairness` prints it; the neighbour calls from a process of its own.
"""

from __future__ import annotations

import base64
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from service_load import SPAWN, Caller, Load, get, observes, percentiles, post
from unseen.serve.client import Client
from unseen.serve.http.auth import ApiKeys
from unseen.serve.run import run
from unseen.serve.settings import Settings
from unseen_bench.run import Row, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream

STREAMS = 4  # of the neighbour
CALLER = multiprocessing.get_context("fork")  # starts at once, and has no need of torch


class Neighbour(NamedTuple):
    """What a neighbour asks for: so many callers, each with requests of a kind; `batch` is 0 for what is read."""

    callers: int
    kind: str
    batch: int = 0


NEIGHBOURS = {
    "16 x 512": Neighbour(16, "observe", 512),
    "64 x 2048": Neighbour(64, "observe", 2048),
    "64 x 1": Neighbour(64, "observe", 1),
    "8 x 120 as JSON": Neighbour(8, "json", 120),
    "8 x refused JSON": Neighbour(8, "bad json", 60_000),
    "4 x 2000 files": Neighbour(4, "form", 2000),
    "32 inspect": Neighbour(32, ""),
    "32 history": Neighbour(32, "/history"),
    "32 labels": Neighbour(32, "/labels"),
    "64 refused": Neighbour(64, "refused"),
}


def measure_all(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    z = stream(labels, 2048)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        keys = ApiKeys(Path(folder) / "data" / "keys.json")
        tenants = keys.add("lone", "admin"), keys.add("neighbour", "admin")
        labels.save(Path(folder) / "space")
        ours, theirs = SPAWN.Pipe()
        server = SPAWN.Process(target=_serve, args=(theirs, Path(folder) / "data", arguments.compute), daemon=True)
        server.start()
        try:
            host = str(ours.recv()).removeprefix("http://")
            paths = [_streams(host, key, Path(folder) / "space", arguments.detector, STREAMS) for key in tenants]
            lone = observes(host, f"{paths[0][0]}/observe", z, 1, tenants[0])
            last = [observes(host, f"{path}/observe", z[:1], 1, tenants[1])[0] for path in paths[1]]
            Load(host, lone, 1).run(1)
            for name in arguments.neighbours:
                requests = _requests(host, NEIGHBOURS[name], paths[1], z, tenants[1])
                rounds = []
                for _ in range(arguments.rounds):
                    rounds.append(_round(host, lone, name, requests, arguments.seconds))
                    Load(host, last, STREAMS).run(0)  # answered when nothing of the neighbour is left
                yield _row(name, rounds)
        finally:
            server.kill()
            server.join()


class Round(NamedTuple):
    """The percentiles of the lone tenant, alone and beside a neighbour, and how much that one had answered."""

    alone: Row
    beside: Row
    answered: int

    def ratio(self, name: str) -> float:
        """How many times as long the tenant waited beside the neighbour."""
        return float(self.beside[name] / self.alone[name])


def _round(host: str, lone: list[bytes], name: str, requests: list[bytes], seconds: float) -> Round:
    """Measure alone, then beside a neighbour that is killed afterwards; say on stderr how it went."""
    alone = _percentiles(host, lone, seconds)
    answered = CALLER.Value("q", 0)
    neighbour = CALLER.Process(target=_ask, args=(host, requests, NEIGHBOURS[name].callers, answered), daemon=True)
    neighbour.start()
    time.sleep(0.5)
    beside = _percentiles(host, lone, seconds)
    neighbour.kill()
    neighbour.join()
    texts = [f"p50 {one['p50_ms']:.1f}, p99 {one['p99_ms']:.0f} ms" for one in (alone, beside)]
    line = f"{name}: {texts[0]} alone, {texts[1]} beside, {answered.value:,} answers to the neighbour"
    print(line, file=sys.stderr, flush=True)
    return Round(alone, beside, answered.value)


def _row(name: str, rounds: list[Round]) -> Row:
    return {
        "neighbour": name,
        "alone_p99_ms": statistics.median(one.alone["p99_ms"] for one in rounds),
        "beside_p99_ms": statistics.median(one.beside["p99_ms"] for one in rounds),
        "ratio": statistics.median(one.ratio("p99_ms") for one in rounds),
        "p50_ratio": statistics.median(one.ratio("p50_ms") for one in rounds),
        "neighbour_requests": sum(one.answered for one in rounds),
    }


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("neighbour", "alone p99 ms", "beside p99 ms", "ratio", "p50 ratio", "neighbour's requests")
    formats = {"alone_p99_ms": ".0f", "beside_p99_ms": ".0f", "ratio": ".1f", "p50_ratio": ".1f"}
    formats["neighbour_requests"] = ",d"
    cells = ((row["neighbour"], *(format(row[name], form) for name, form in formats.items())) for row in rows)
    yield from markdown_table(heads, cells)


def _percentiles(host: str, requests: list[bytes], seconds: float) -> Row:
    load = Load(host, requests, 1)
    load.run(seconds)
    return percentiles(load.times)


def _ask(host: str, requests: list[bytes], callers: int, answered: Any) -> None:
    class Counted(Load):
        def _heard(self, caller: Caller) -> bool:
            heard = super()._heard(caller)
            answered.value += heard
            return heard

    Counted(host, requests, callers).run(math.inf)


def _serve(pipe: Any, data: Path, compute: int) -> None:
    settings = Settings(data, encoder=None, compute=compute)
    run(settings, port=0, demo=False, announce=lambda text: pipe.send(text.split()[2]))


def _streams(host: str, key: str, space: Path, detector: str, count: int) -> list[str]:
    with Client(f"http://{host}", key, retries=20) as client:
        return [f"/v1/streams/{client.create(space, detector=detector).id}" for _ in range(count)]


def _requests(host: str, wanted: Neighbour, paths: list[str], z: torch.Tensor, key: str) -> list[bytes]:
    if wanted.kind == "observe":
        return [one for path in paths for one in observes(host, f"{path}/observe", z, wanted.batch, key)]
    if wanted.kind == "json":
        rows = json.dumps({"features": z[: wanted.batch].tolist()}).encode()
        return [post(host, f"{path}/observe", rows, "application/json", key) for path in paths]
    if wanted.kind == "bad json":  # one row of so many values that ends in what is none
        row = b'{"features": [[' + b"1," * wanted.batch + b"x]]}"
        return [post(host, f"{path}/observe", row, "application/json", key) for path in paths]
    if wanted.kind == "form":  # of what is no image
        part = b'--x\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\nq\r\n'
        body = part * wanted.batch + b"--x--\r\n"
        return [post(host, f"{path}/score", body, "multipart/form-data; boundary=x", key) for path in paths]
    if wanted.kind == "refused":
        return [get(host, paths[0], base64.b64encode(key.encode()).decode())]
    return [get(host, path + wanted.kind, key) for path in paths]
