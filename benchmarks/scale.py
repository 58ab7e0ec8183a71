"""What Ray costs: keyed streams against the serial run, and the seconds until a local Ray answers.

    python benchmarks/scale.py             # 200 streams, serial and on a local Ray of two workers

Rounds of serial and Ray alternate, so that a busy machine slows them alike. (Not called ray.py: a script's folder comes
first on the path, and `import ray` would find it.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from unseen import SessionSpec, keyed
from unseen.scale import cluster
from unseen.scale.score import on_ray
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments, alternating_seconds
from unseen_bench.run.synthetic import label_space, stream

WORKERS, STORE, ROUNDS = 2, 512 << 20, 3


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 500])
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    """Yield the start of a Ray, then streams of several lengths; those of one sample show what sending one costs."""
    started = time.perf_counter()
    with cluster.connect("local", workers=WORKERS, memory=STORE) as ray:
        ray.get(ray.remote(lambda: True).remote())
        yield {"what": "start a local Ray", "workers": WORKERS, "seconds": time.perf_counter() - started}
        for length in arguments.lengths:
            for detector in ("pooled", "online"):
                yield compare(ray, detector, arguments.streams, length)


def compare(ray: Any, detector: str, streams: int, length: int) -> Row:
    """What so many interleaved streams took serially and on Ray, and in how many every bit is the same."""
    labels = label_space(200, 742, 512)
    z = stream(labels, streams * length)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0)).tolist()
    parts = keyed.split([f"stream {place % streams:03d}" for place in order])
    job, found = keyed.StreamJob(SessionSpec(labels, detector)), dict[str, list[keyed.StreamResult]]()

    def work(name: str, runner: keyed.StreamRunner) -> None:
        found[name] = list(runner(job, parts, z, {}))

    works = {"serial": partial(work, "serial", keyed.run_serially), "ray": partial(work, "ray", on_ray(ray))}
    works["ray"]()  # workers import torch once
    seconds = alternating_seconds(works, rounds=ROUNDS)
    serial, on_cluster = (statistics.median(times) for times in seconds.values())
    bits = [{one.key: one.verdicts.structured().tobytes() for one in results} for results in found.values()]
    assert bits[0].keys() == bits[1].keys()
    return {
        "what": f"score with {detector}",
        "streams": streams,
        "samples": len(z),
        "equal": sum(bits[0][key] == bits[1][key] for key in bits[0]),
        "serial_seconds": serial,
        "ray_seconds": on_cluster,
        "serial_over_ray": statistics.median(a / b for a, b in zip(*seconds.values(), strict=True)),
        "extra_ms_per_stream": 1000 * (on_cluster - serial / WORKERS) / streams,
    }


if __name__ == "__main__":
    main()
