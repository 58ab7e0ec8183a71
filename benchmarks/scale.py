"""What Ray costs and keeps: keyed streams against the serial run, photos against the local encoder, a worker killed.

    python benchmarks/scale.py score --features ../shared/clip-b16      # 200 streams, serial and on a local Ray
    python benchmarks/scale.py encode --images ../shared/images          # the photos, twice, in minutes

One JSON object a line. Rounds of serial and Ray alternate, so that a busy machine slows them alike. (Not called ray.py:
a script's folder comes first on the path, and `import ray` would find it.)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen import SessionSpec, keyed, suites
from unseen.encoders import load_encoder
from unseen.features import FeatureCache, encode_images, load_features
from unseen.features.shards import read_shards
from unseen.images import find_images
from unseen.scale import cluster
from unseen.scale import encode as scaled_encode
from unseen.scale import score as scaled_score


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1 if arguments.what == "score" else arguments.workers)
    started = time.perf_counter()
    with cluster.connect("local", workers=arguments.workers, memory=arguments.store << 20) as ray:
        ray.get(ray.remote(_ready).remote())
        show(what="start a local Ray", workers=arguments.workers, seconds=_since(started))
        (score if arguments.what == "score" else encode)(ray, arguments)


def score(ray: Any, arguments: argparse.Namespace) -> None:
    """Compare streams of several lengths; those of one sample show what sending a stream costs."""
    suite = suites.load(arguments.suite, arguments.features)
    for length in arguments.lengths:
        z, keys = many_streams(suite, arguments.streams, length)
        for detector in arguments.detectors:
            recipe = keyed.StreamJob(SessionSpec(suite.labels, detector))
            _compare(ray, recipe, keyed.split(keys), z, arguments)


def _compare(
    ray: Any, recipe: keyed.StreamJob, streams: Sequence[keyed.KeyedStream], z: Tensor, arguments: argparse.Namespace
) -> None:
    ways: dict[str, Callable[[], list[keyed.StreamResult]]] = {
        "serial": lambda: list(keyed.run_serially(recipe, streams, z, {})),
        "ray": lambda: list(scaled_score.on(ray)(recipe, streams, z, {})),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, list[keyed.StreamResult]] = {}
    ways["ray"]()  # workers import torch once
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            found[name] = way()
            seconds[name].append(_since(started))
    serial, on_ray = (statistics.median(seconds[name]) for name in ways)
    show(
        what="score",
        detector=recipe.spec.detector,
        streams=len(streams),
        samples=len(z),
        equal=_equal(found["serial"], found["ray"]),
        serial_seconds=serial,
        ray_seconds=on_ray,
        serial_over_ray=statistics.median(a / b for a, b in zip(seconds["serial"], seconds["ray"], strict=True)),
        ray_ms_per_stream=1000 * on_ray / len(streams),
        extra_ms_per_stream=1000 * (on_ray - serial / arguments.workers) / len(streams),
        rounds=arguments.rounds,
    )


def _equal(serial: Sequence[keyed.StreamResult], other: Sequence[keyed.StreamResult]) -> int:
    """Return how many streams have the same bits in every column."""
    by_key = {scan.key: scan for scan in other}
    assert len(by_key) == len(other) == len(serial)
    return sum(all(map(torch.equal, _columns(scan), _columns(by_key[scan.key]))) for scan in serial)


def _columns(result: keyed.StreamResult) -> list[Tensor]:
    return [*result.verdicts.reading, *result.verdicts.decisions]


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


def encode(ray: Any, arguments: argparse.Namespace) -> None:
    """Encode the photos on Ray, one actor killed when a third is done, and by the local path; compare the vectors."""
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.out or Path(folder)
        _encode_on_ray(ray, kept / "ray", arguments)
        _encode_here(kept / "local", arguments)
        one, two = load_features(kept / "local"), load_features(kept / "ray")
    inputs = [entry.path for entry in find_images(str(arguments.images))]
    place = {key: row for row, key in enumerate(one.keys)}  # a local run that was stopped has another order
    z = one.z[[place[key] for key in two.keys]]
    show(
        what="difference",
        images=len(inputs),
        keys_are_inputs_in_order=list(two.keys) == inputs,
        min_cosine=float((z.double() * two.z.double()).sum(1).min()),
        largest_entry=float((z - two.z).abs().max()),
        equal_rows=int((z == two.z).all(1).sum()),
    )


def _encode_on_ray(ray: Any, folder: Path, arguments: argparse.Namespace) -> None:
    job = scaled_encode.Job(arguments.encoder, "cpu", actors=arguments.workers)
    plan = scaled_encode.plan(ray, [str(arguments.images)], folder, job, size=arguments.shard)
    reports, victim, started = [], 0, time.perf_counter()
    for report in scaled_encode.run(ray, plan, job):
        reports.append(report)
        if not victim and len(reports) >= len(plan.shards) / 3:
            victim = kill_actor()
            print(f"killed {victim} after {len(reports)} of {len(plan.shards)} shards", file=sys.stderr, flush=True)
    rows = [row["key"] for _, part in read_shards(folder) for row in part]
    show(
        what="encode on Ray",
        images=plan.total,
        already=plan.already,
        rows=len(rows),
        distinct=len(set(rows)),
        skipped=sum(len(report.skipped) for report in reports),
        shards=len(plan.shards),
        killed=bool(victim),
        seconds=_since(started),
        images_per_second=plan.total / _since(started),
    )


def _encode_here(folder: Path, arguments: argparse.Namespace) -> None:
    encoder, entries = load_encoder(arguments.encoder, device="cpu"), find_images(str(arguments.images))
    started = time.perf_counter()
    done = sum(len(batch) for batch in encode_images(entries, encoder, FeatureCache(folder, encoder)))
    show(what="encode here", images=done, seconds=_since(started), images_per_second=done / _since(started))


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


def show(**row: object) -> None:
    """Print one row, numbers to four digits."""
    print(json.dumps({k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}), flush=True)


def _ready() -> bool:
    return True


def _since(started: float) -> float:
    return time.perf_counter() - started


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("score", "encode"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", type=int, default=512, help="object store in MB")
    parser.add_argument("--features", type=Path, default=Path("../shared/clip-b16"))
    parser.add_argument("--suite", default="imagenet200")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--detectors", nargs="+", default=["default", "online"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=Path, default=Path("../shared/images"))
    parser.add_argument("--encoder", default="offline")
    parser.add_argument("--shard", type=int, default=64)
    parser.add_argument("--out", type=Path, help="keep the features here, and go on from what is there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
