"""What Ray costs and keeps: keyed streams against the serial run, photos against the local encoder, a worker killed.

    python benchmarks/scale.py score --features ../shared/clip-b16      # 200 streams, serial and on a local Ray
    python benchmarks/scale.py encode --images ../shared/images          # the photos, twice, in minutes

Rounds of serial and Ray alternate, so that a busy machine slows them alike. (Not called ray.py: a script's folder comes
first on the path, and `import ray` would find it.)
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen import keyed, suites
from unseen.bench import Row, command
from unseen.bench.command import Arguments
from unseen.bench.timing import alternating_seconds
from unseen.encoders import load_encoder
from unseen.features import FeatureCache, encode_images, load_features
from unseen.features.shards import read_shards
from unseen.images import find_images
from unseen.scale import cluster
from unseen.scale import encode as scaled_encode
from unseen.scale.score import on_ray
from unseen.session import SessionSpec


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", type=int, default=512, help="object store in MB")
    parser.add_argument("--features", type=Path, default=Path("../shared/clip-b16"))
    parser.add_argument("--suite", default="imagenet200")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--detectors", nargs="+", default=["pooled", "online"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=Path, default=Path("../shared/images"))
    parser.add_argument("--encoder", default="offline")
    parser.add_argument("--shard", type=int, default=64)
    parser.add_argument("--out", type=Path, help="keep the features here, and go on from what is there")
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    started = time.perf_counter()
    with cluster.connect("local", workers=arguments.workers, memory=arguments.store << 20) as ray:
        ray.get(ray.remote(_ready).remote())
        yield {"what": "start a local Ray", "workers": arguments.workers, "seconds": _since(started)}
        yield from PARTS[arguments.what](ray, arguments)


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
    """Return how many streams have the same bits in every column."""
    by_key = {result.key: result.verdicts.structured().tobytes() for result in other}
    assert len(by_key) == len(other) == len(serial)
    return sum(result.verdicts.structured().tobytes() == by_key[result.key] for result in serial)


def many_streams(suite: suites.Suite, count: int, length: int) -> tuple[Tensor, list[str]]:
    """Return samples of `count` streams, interleaved: known images and one unknown set, in another order each."""
    parts, keys = [], []
    for number in range(count):
        trial = suite.against(suite.sets[number % len(suite.sets)]).ordered("shuffled", seed=number)
        rows = torch.arange(length) % len(trial.z)
        parts.append(trial.z[rows])
        keys += [f"stream {number:03d}"] * length
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
    return torch.cat(parts)[order], [keys[i] for i in order.tolist()]


def encode(ray: Any, arguments: Arguments) -> Iterator[Row]:
    """Encode the photos on Ray, one actor killed when a third is done, and by the local path; compare the vectors."""
    torch.set_num_threads(arguments.workers)
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.out or Path(folder)
        yield encode_on_ray(ray, kept / "ray", arguments)
        yield encode_here(kept / "local", arguments)
        one, two = load_features(kept / "local"), load_features(kept / "ray")
    inputs = [entry.path for entry in find_images(str(arguments.images))]
    place = {key: row for row, key in enumerate(one.keys)}  # a local run that was stopped has another order
    z = one.z[[place[key] for key in two.keys]]
    yield {
        "what": "difference",
        "images": len(inputs),
        "keys_are_inputs_in_order": list(two.keys) == inputs,
        "min_cosine": float((z.double() * two.z.double()).sum(1).min()),
        "largest_entry": float((z - two.z).abs().max()),
        "equal_rows": int((z == two.z).all(1).sum()),
    }


def encode_on_ray(ray: Any, folder: Path, arguments: Arguments) -> Row:
    job = scaled_encode.EncodeJob(arguments.encoder, "cpu", actors=arguments.workers)
    plan = scaled_encode.plan(ray, [str(arguments.images)], folder, job, size=arguments.shard)
    written, victim, started = [], 0, time.perf_counter()
    for shard in scaled_encode.run(ray, plan, job):
        written.append(shard)
        if not victim and len(written) >= len(plan.shards) / 3:
            victim = kill_actor()
            print(f"killed {victim} after {len(written)} of {len(plan.shards)} shards", file=sys.stderr, flush=True)
    rows = [row["key"] for _, part in read_shards(folder) for row in part]
    return {
        "what": "encode on Ray",
        "images": plan.total,
        "already": plan.already,
        "rows": len(rows),
        "distinct": len(set(rows)),
        "skipped": sum(len(shard.skipped) for shard in written),
        "shards": len(plan.shards),
        "killed": bool(victim),
        "seconds": _since(started),
        "images_per_second": plan.total / _since(started),
    }


def encode_here(folder: Path, arguments: Arguments) -> Row:
    encoder, entries = load_encoder(arguments.encoder, device="cpu"), find_images(str(arguments.images))
    started = time.perf_counter()
    done = sum(len(batch) for batch in encode_images(entries, encoder, FeatureCache(folder, encoder)))
    seconds = _since(started)
    return {"what": "encode here", "images": done, "seconds": seconds, "images_per_second": done / seconds}


def kill_actor() -> int:
    """Kill one encoding worker that descends from this process; return its id."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes().decode(errors="replace")
            if title.startswith("ray::MapWorker(Map(_Encode))") and _is_ours(int(path.name)):
                os.kill(int(path.name), signal.SIGKILL)
                return int(path.name)
        except OSError:
            continue
    return 0


def _is_ours(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/status").read_text().partition("PPid:")[2].split()[0])
    return False


def _ready() -> bool:
    return True


def _since(started: float) -> float:
    return time.perf_counter() - started


PARTS: dict[str, Callable[[Any, Arguments], Iterator[Row]]] = {"score": score, "encode": encode}

if __name__ == "__main__":
    main()
