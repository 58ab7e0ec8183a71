"""How fast the recommended detector and the scan are on a GPU: streams, many at once, one by one, other precisions.

    python benchmarks/gpu.py                          # every part
    python benchmarks/gpu.py --only streams latency   # some of them
    python benchmarks/gpu.py --json                   # one JSON object per line

Times are medians after a warm-up, in one run, against ceilings measured in that run. Nothing is measured while the
tests on the GPU fail. gpu_profile.py says where the time goes, gpu_encode.py measures the encoder before the scan.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gpu_pooled
from resident import Resident
from speed import naive_loop
from unseen import scan
from unseen.detectors import Online
from unseen.features import load_features
from unseen.odds import logit
from unseen.scan.cuda import blas
from unseen_bench.metrics import auroc
from unseen_bench.run import command
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row
from unseen_bench.run.synthetic import label_space, near
from unseen_bench.run.timing import median_seconds

REPOSITORY = Path(__file__).parents[1]
KNOWN, NEGATIVES, DIM = 1_000, 10_000, 512
IMAGES, SETS = 50_000, (10_000, 10_000, 10_000, 5_640)  # known images, and those of four unknown sets
SAMPLES = sum(IMAGES + n for n in SETS)  # of four streams, each all known images and one set
MODES = ("float32", "split", "tf32")  # how reads are multiplied
SEEDS = 10
Parts = Mapping[str, Callable[[Arguments], Iterator[Row]]]


def main() -> None:
    parser = gpu_parser(__doc__, PARTS)
    parser.add_argument("--features", type=Path, default=REPOSITORY.parent / "shared" / "clip-b16")
    run_parts(parser, PARTS)


def gpu_parser(doc: str | None, parts: Parts) -> ArgumentParser:
    """A parser with the options that the benchmarks on a GPU share."""
    parser = command.parser(doc)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--untested", action="store_true", help="do not run the tests first")
    return parser


def run_parts(parser: ArgumentParser, parts: Parts) -> None:
    """Print the rows of the parts that were asked for."""
    arguments = command.parse(parser)
    if not arguments.untested:
        command.require_passing_tests(REPOSITORY, "-m", "gpu", "tests/scan/test_cuda.py", "tests/detectors")
    command.show((row for part in arguments.only for row in parts[part](arguments)), arguments)


def device_seconds(work: Callable[[], object], *, inner: int = 20, repeat: int = 7) -> float:
    """The median time of `work` between two events on the GPU, per call of `inner` in a row."""
    times = []
    for _ in range(repeat + 1):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / inner)
    return statistics.median(times[1:])


def setting() -> tuple[Online, Tensor, list[list[Tensor]]]:
    """The detector, all images, and for each unknown set ten orders of the known images and that set."""
    labels = label_space(KNOWN, NEGATIVES, DIM).to(device="cuda")
    generator = torch.Generator("cuda").manual_seed(5)
    pool = []
    for count, anchors in ((IMAGES, labels.id_anchors), (sum(SETS), labels.ood_anchors)):
        chosen = torch.randint(len(anchors), (count,), generator=generator, device="cuda")
        pool.append(near(anchors[chosen], generator))
    starts = list(itertools.accumulate(SETS, initial=IMAGES))[:-1]
    images = [
        torch.cat([torch.arange(IMAGES), torch.arange(i, i + n)]).cuda() for i, n in zip(starts, SETS, strict=True)
    ]
    orders = [
        [part[torch.randperm(len(part), generator=generator, device="cuda")] for _ in range(SEEDS)] for part in images
    ]
    return Online(labels), torch.cat(pool), orders


def observed(online: Online, z: Tensor) -> Tensor:
    """The routes of one stream that was learnt from in order."""
    return online.observe(online.start(), z)[0].route


@functools.cache
def measured_ceilings() -> dict[str, float]:
    """What this GPU can copy and multiply at most."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    rates = {"copy TB/s": 2 * source.nbytes / device_seconds(lambda: target.copy_(source), inner=5) / 1e12}
    for name, kind in (("float32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
        rates[f"{name} TFLOP/s"] = 2 * 8192**3 / device_seconds(product(a, b, reads=name), inner=5) / 1e12
    return rates


def product(a: Tensor, b: Tensor, *, reads: Any) -> Callable[[], Tensor]:
    if a.dtype == torch.float32:
        return lambda: blas.product(a[None], b[None], reads=reads)
    return lambda: a @ b.T


def ceilings(_: Arguments) -> Iterator[Row]:
    yield {"case": "machine", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    yield {"case": "ceilings", **measured_ceilings()}


def floor(known: int, unknown: int, samples: int) -> dict[str, float]:
    """The least work of streams with so many teachers, and the time it takes at the measured ceilings."""
    rows = KNOWN + NEGATIVES
    taught = known * KNOWN + unknown * NEGATIVES  # pairs of teacher and row
    # gate, reads; then for each teacher its targets, its cosines and its share of the rewrite
    flops = 2.0 * DIM * (2 * samples * rows + 3 * taught)
    moved = 4.0 * (samples * DIM * 2 + 2 * rows * DIM)
    ceiling = measured_ceilings()
    times = {"products s": flops / ceiling["float32 TFLOP/s"] / 1e12, "bytes s": moved / ceiling["copy TB/s"] / 1e12}
    return {"TFLOP": flops / 1e12, "GB": moved / 1e9, **times}


def streams(_: Arguments) -> Iterator[Row]:
    online, pool, orders = setting()
    parts = [pool[order[0]] for order in orders]
    slow = parts[0][:300]
    naive_loop(online, slow[:50])
    torch.cuda.synchronize()
    started = time.perf_counter()
    naive_loop(online, slow)
    torch.cuda.synchronize()
    naive_each = (time.perf_counter() - started) / len(slow)
    yield {"case": "naive", "µs per sample": 1e6 * naive_each}
    routes = torch.cat([observed(online, part) for part in parts])
    known, unknown = int((routes > 0).sum()), int((routes < 0).sum())
    least = floor(known, unknown, SAMPLES)
    for mode in MODES:
        with scan.using(f"cuda-{mode}"):
            total = sum(median_seconds(partial(observed, online, part), repeat=3) for part in parts)
            together = median_seconds(lambda: four_at_once(online, pool, orders), repeat=3)
        yield {
            "case": f"four streams, {mode}",
            "s": total,
            "in one call s": together,
            "µs per sample": 1e6 * total / SAMPLES,
            "times naive": naive_each * SAMPLES / total,
            "taught known": known / SAMPLES,
            "taught unknown": unknown / SAMPLES,
            **least,
            "of floor": total / max(least["products s"], least["bytes s"]),
        }


def four_at_once(online: Online, pool: Tensor, orders: list[list[Tensor]]) -> object:
    return online.observe_many([online.start()] * len(orders), pool, [order[0] for order in orders])


def many(_: Arguments) -> Iterator[Row]:
    """Run ten orders of four sets: in one call, which shares what the frozen text says, and one after another."""
    online, pool, orders = setting()
    every = [order for seeds in orders for order in seeds]
    start = online.start()

    def together() -> Any:
        return online.observe_many([start] * len(every), pool, every)

    def sequentially() -> None:
        for order in every:
            online.observe(start, pool[order])

    got = torch.cat([output.route for output, _ in together()])
    least = floor(int((got > 0).sum()), int((got < 0).sum()), len(got))["products s"]
    for mode in MODES:
        with scan.using(f"cuda-{mode}"):
            took = median_seconds(together, repeat=2)
            sequential = median_seconds(sequentially, repeat=1, warmup=0)
        row = {"one call s": took, "one by one s": sequential, "share": took / sequential}
        peak = torch.cuda.max_memory_allocated() / 1e9
        yield {"case": f"40 streams, {mode}", **row, "floor s": least, "of floor": took / least, "GB": peak}


def latency(_: Arguments) -> Iterator[Row]:
    """Time one sample at a time with the state resident: on the GPU, and from host memory to a score on the host."""
    online, pool, orders = setting()
    z = pool[orders[0][0][:2000]]
    resident = Resident(online.labels.id_anchors, online.labels.ood_anchors, bound=logit(online.beta))
    for sample in z[:20]:
        resident.observe(sample)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        resident.launch()
    walls, routes = host_microseconds(resident, graph, z.cpu().pin_memory())
    device = [device_microseconds(resident, graph, sample) for sample in z[:600]]
    for name, route in (("read only", 0), ("taught known", 1), ("taught unknown", -1)):
        yield {
            "case": f"one by one, {name}",
            "GPU µs": statistics.median(t for t, r in zip(device, routes, strict=False) if r == route),
            "host to host µs": statistics.median(t for t, r in zip(walls, routes, strict=True) if r == route),
        }
    both = {"GPU µs": statistics.median(device), "host to host µs": statistics.median(walls)}
    yield {"case": "one by one, all", **both, "p99": sorted(walls)[int(0.99 * len(walls))]}


def host_microseconds(resident: Resident, graph: torch.cuda.CUDAGraph, z: Tensor) -> tuple[list[float], list[int]]:
    """The time of each sample from host memory to a score on the host, and its route."""
    score = torch.empty((), dtype=torch.float64).pin_memory()
    walls, routes = [], []
    for sample in z:
        started = time.perf_counter()
        resident.z.copy_(sample, non_blocking=True)
        graph.replay()
        score.copy_(resident.score, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        walls.append(1e6 * (time.perf_counter() - started))
        routes.append(int(resident.route))
    return walls, routes


def device_microseconds(resident: Resident, graph: torch.cuda.CUDAGraph, sample: Tensor) -> float:
    """The time of one sample between two events on the GPU."""
    resident.z.copy_(sample)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000)
    start.record()
    graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(stop)


def precision(arguments: Arguments) -> Iterator[Row]:
    """Compare reads in float32 with the others on real features: scores, AUROC."""

    def features(name: str) -> Tensor:
        return load_features(arguments.features / f"{name}.safetensors").z

    names, negatives = features("text-imagenet1k"), features("text-surrogate-negatives")[:NEGATIVES]
    space = label_space(len(names), len(negatives), DIM)
    online = Online(type(space)(space.names, space.negatives, names, negatives).to(device="cuda"))
    known = features("images-imagenet_val5")
    for name in ("textures10", "intel_scenes", "flowers102", "mnist"):
        unknown = features(f"images-{name}")
        order = torch.randperm(len(known) + len(unknown), generator=torch.Generator().manual_seed(0))
        z, is_id = torch.cat([known, unknown])[order].cuda(), order.cuda() < len(known)
        scores = {}
        for mode in MODES:
            with scan.using(f"cuda-{mode}"):
                scores[mode] = online.observe(online.start(), z)[0].score
        rates = {f"AUROC {mode}": float(auroc(s[is_id].cpu(), s[~is_id].cpu())) for mode, s in scores.items()}
        changes = {f"change {mode}": float((scores[mode] - scores["float32"]).abs().max()) for mode in MODES[1:]}
        yield {"case": f"reads on {name}", **rates, **changes}


PARTS: Parts = {
    "pooled": lambda _: gpu_pooled.pooled_rows(measured_ceilings),
    "others": lambda _: gpu_pooled.other_rows(),
    "million": lambda _: gpu_pooled.million_rows(),
    "ceilings": ceilings,
    "streams": streams,
    "many": many,
    "latency": latency,
    "precision": precision,
}

if __name__ == "__main__":
    main()
