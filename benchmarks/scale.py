"""What Ray costs: keyed streams against the serial run, and the seconds until a local Ray answers.

    python benchmarks/scale.py --features ../shared/clip-b16             # 200 streams, serial and on a local Ray

Rounds of serial and Ray alternate, so that a busy machine slows them alike. (Not called ray.py: a script's folder comes
first on the path, and `import ray` would find it.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen import SessionSpec, keyed
from unseen.scale import cluster
from unseen.scale.score import on_ray
from unseen_bench import suites
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.run.timing import alternating_seconds


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", type=int, default=512, help="object store in MB")
    parser.add_argument("--features", type=Path, default=Path("../shared/clip-b16"))
    parser.add_argument("--suite", default="imagenet200")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--detectors", nargs="+", default=["pooled", "online"])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    started = time.perf_counter()
    with cluster.connect("local", workers=arguments.workers, memory=arguments.store << 20) as ray:
        ray.get(ray.remote(_ready).remote())
        yield {"what": "start a local Ray", "workers": arguments.workers, "seconds": _since(started)}
        yield from score(ray, arguments)


def score(ray: Any, arguments: Arguments) -> Iterator[Row]:
    """Compare streams of several lengths; those of one sample show what sending a stream costs."""
    suite = suites.load(arguments.suite, arguments.features)
    for length in arguments.lengths:
        z, keys = many_streams(suite, arguments.streams, length)
        for detector in arguments.detectors:
            job = keyed.StreamJob(SessionSpec(suite.labels, detector))
            yield compare(ray, job, keyed.split(keys), z, arguments)


def compare(
    ray: Any, job: keyed.StreamJob, streams: Sequence[keyed.KeyedStream], z: Tensor, arguments: Arguments
) -> Row:
    found: dict[str, list[keyed.StreamResult]] = {}

    def work(name: str, runner: keyed.StreamRunner) -> None:
        found[name] = list(runner(job, streams, z, {}))

    works = {"serial": partial(work, "serial", keyed.run_serially), "ray": partial(work, "ray", on_ray(ray))}
    works["ray"]()  # workers import torch once
    seconds = alternating_seconds(works, rounds=arguments.rounds)
    serial, on_cluster = (statistics.median(times) for times in seconds.values())
    return {
        "what": "score",
        "detector": job.spec.detector,
        "streams": len(streams),
        "samples": len(z),
        "equal": _equal(found["serial"], found["ray"]),
        "serial_seconds": serial,
        "ray_seconds": on_cluster,
        "serial_over_ray": statistics.median(a / b for a, b in zip(*seconds.values(), strict=True)),
        "ray_ms_per_stream": 1000 * on_cluster / len(streams),
        "extra_ms_per_stream": 1000 * (on_cluster - serial / arguments.workers) / len(streams),
        "rounds": arguments.rounds,
    }


def _equal(serial: Sequence[keyed.StreamResult], other: Sequence[keyed.StreamResult]) -> int:
    """How many streams have the same bits in every column."""
    by_key = {result.key: result.verdicts.structured().tobytes() for result in other}
    assert len(by_key) == len(other) == len(serial)
    return sum(result.verdicts.structured().tobytes() == by_key[result.key] for result in serial)


def many_streams(suite: suites.Suite, count: int, length: int) -> tuple[Tensor, list[str]]:
    """Samples of `count` streams, interleaved: known images and one unknown set, in another order each."""
    parts, keys = [], []
    for number in range(count):
        trial = suite.against(suite.sets[number % len(suite.sets)]).ordered("shuffled", seed=number)
        rows = torch.arange(length) % len(trial.z)
        parts.append(trial.z[rows])
        keys += [f"stream {number:03d}"] * length
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
    return torch.cat(parts)[order], [keys[i] for i in order.tolist()]


def _ready() -> bool:
    return True


def _since(started: float) -> float:
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
