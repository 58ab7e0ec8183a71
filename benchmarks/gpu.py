"""How fast the paper's scan and the recommended detector are on a GPU, beside the naive loop and what the GPU can do.

    python benchmarks/gpu.py                          # the scan on four streams of ImageNet's size, then `pooled`
    python benchmarks/gpu.py --json                   # one JSON object per line

Times are medians after a warm-up, in one run, against ceilings measured in that run. Nothing is measured while the
tests on the GPU fail; --untested skips them. gpu_encode.py measures the encoder before the scan.
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from speed import naive_loop
from unseen import LabelSpace, scan
from unseen.detectors import Detector, Online, PooledEvidence
from unseen_bench.run import command
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row
from unseen_bench.run.synthetic import label_space, near
from unseen_bench.run.timing import median_seconds

REPOSITORY = Path(__file__).parents[1]
KNOWN, NEGATIVES, DIM = 1_000, 10_000, 512
IMAGES, SETS = 50_000, (10_000, 10_000, 10_000, 5_640)  # known images, and those of four unknown sets
MODES = ("float32", "split", "tf32")  # how reads are multiplied
Parts = Mapping[str, Callable[[Arguments], Iterator[Row]]]


def main() -> None:
    run_parts(gpu_parser(__doc__, PARTS), PARTS)


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


@cache
def measured_ceilings() -> dict[str, float]:
    """What this GPU can copy and multiply at most."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    rates = {"copy TB/s": 2 * source.nbytes / device_seconds(lambda: target.copy_(source)) / 1e12}
    for name, kind in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        a = torch.randn(8192, 8192, device="cuda", dtype=kind)
        rates[f"{name} TFLOP/s"] = 2 * 8192**3 / device_seconds(lambda a=a: a @ a.T) / 1e12
    return rates


def ceilings(_: Arguments) -> Iterator[Row]:
    yield {"case": "machine", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    yield {"case": "ceilings", **measured_ceilings()}


def device_seconds(work: Callable[[], object], *, inner: int = 5, repeat: int = 7) -> float:
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


def streams(labels: LabelSpace) -> list[Tensor]:
    """For each unknown set, all known images and that set in one random order."""
    generator = torch.Generator("cuda").manual_seed(5)

    def drawn(count: int, anchors: Tensor) -> Tensor:
        chosen = torch.randint(len(anchors), (count,), generator=generator, device="cuda")
        return near(anchors[chosen], generator)

    known = drawn(IMAGES, labels.id_anchors)
    mixed = [torch.cat([known, drawn(count, labels.ood_anchors)]) for count in SETS]
    return [part[torch.randperm(len(part), generator=generator, device="cuda")] for part in mixed]


def scan_rows(_: Arguments) -> Iterator[Row]:
    labels = label_space(KNOWN, NEGATIVES, DIM).to(device="cuda")
    online, parts = Online(labels), streams(labels)
    slow = parts[0][:300]
    naive = median_seconds(lambda: naive_loop(online, slow), repeat=1) / len(slow)
    yield {"case": "naive", "µs per sample": 1e6 * naive}
    samples = sum(map(len, parts))
    routes = torch.cat([online.observe(online.start(), part)[0].route for part in parts])
    taught = int((routes > 0).sum()) * KNOWN + int((routes < 0).sum()) * NEGATIVES  # pairs of teacher and row
    # gate, reads; then for each teacher its targets, its cosines and its share of the rewrite
    least = 2.0 * DIM * (2 * samples * (KNOWN + NEGATIVES) + 3 * taught) / measured_ceilings()["float32 TFLOP/s"] / 1e12
    for mode in MODES:
        with scan.using(f"cuda-{mode}"):
            total = sum(median_seconds(partial(online.observe, online.start(), part), repeat=3) for part in parts)
        yield {
            "case": f"four streams, {mode}",
            "s": total,
            "µs per sample": 1e6 * total / samples,
            "times naive": naive * samples / total,
            "of floor": total / least,
        }


def batches(_: Arguments) -> Iterator[Row]:
    labels = label_space(KNOWN, NEGATIVES, DIM).to(device="cuda")
    z = streams(labels)[0][:16_384]
    for name, detector in (("pooled", PooledEvidence(labels)), ("online", Online(labels))):
        seconds = median_seconds(partial(in_batches, detector, z))
        yield {"case": f"{name}, batches of 512", "µs per sample": 1e6 * seconds / len(z)}


def in_batches(detector: Detector, z: Tensor) -> None:
    state = detector.start()
    for part in z.split(512):
        _, state = detector.observe(state, part)


PARTS: Parts = {"ceilings": ceilings, "scan": scan_rows, "batches": batches}

if __name__ == "__main__":
    main()
