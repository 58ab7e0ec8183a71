"""How fast the paper's scan and the encoder are on a GPU, beside what the GPU can do.

    python benchmarks/gpu.py                                  # all but `actors`, which need the files of an encoder
    python benchmarks/gpu.py --only tower files
    python benchmarks/gpu.py --only actors --count 32768      # `unseen encode` by Ray actors that share the GPU
    python benchmarks/gpu.py --json                           # one JSON object per line

Times are medians after a warm-up, in one run, against ceilings measured in that run. Nothing is measured while the
tests on the GPU fail; --untested skips them. The tower is the offline one with random weights. `running`
leaves out what came before the first shard: starting processes, importing torch, loading models.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from speed import naive_loop
from unseen import LabelSpace
from unseen.detectors import Online
from unseen.encoders.offline.encoder import OfflineEncoder
from unseen.encoders.offline.image_tower import SIZES
from unseen.features.encoding import encode_ahead, make_reader
from unseen.images import find_images
from unseen.images.sources import usable_cores
from unseen.scale import cluster, encode
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, near

REPOSITORY = Path(__file__).parents[1]
KNOWN, NEGATIVES, DIM = 1_000, 10_000, 512
BATCH = 512  # images the tower gets at once
IMAGES, SETS = 50_000, (10_000, 10_000, 10_000, 5_640)  # known images, and those of four unknown sets
MULTIPLICATIONS = 12 * (197 * 12 * 768**2 + 2 * 197**2 * 768) + 196 * 768**2 + 768 * 512  # of an image, as a textbook
PICTURES = {"500 x 375": ((500, 375), 93), "96 x 72": ((96, 72), 90)}  # width and height, quality
DISTINCT = 256  # files; the rest are links to them, so that all are in memory
GRAIN = 2.0  # levels of noise: as many bytes as photos have


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[name for name in PARTS if name != "actors"])
    parser.add_argument("--untested", action="store_true", help="do not run the tests first")
    parser.add_argument("--count", type=int, default=8192, help="files of the longest runs")
    arguments = command.parse(parser)
    if not arguments.untested:
        command.require_passing_tests(REPOSITORY, "-m", "gpu", "tests/scan/test_cuda.py", "tests/detectors")
    command.show((row for part in arguments.only for row in PARTS[part](arguments)), arguments)


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
    naive = device_seconds(lambda: naive_loop(online, slow), inner=1, repeat=1) / len(slow)
    yield {"case": "naive", "µs per sample": 1e6 * naive}
    samples = sum(map(len, parts))
    routes = torch.cat([online.observe(online.start(), part)[0].route for part in parts])
    taught = int((routes > 0).sum()) * KNOWN + int((routes < 0).sum()) * NEGATIVES  # pairs of teacher and row
    # gate, reads; then for each teacher its targets, its cosines and its share of the rewrite
    least = 2.0 * DIM * (2 * samples * (KNOWN + NEGATIVES) + 3 * taught) / measured_ceilings()["float32 TFLOP/s"] / 1e12
    total = sum(device_seconds(partial(online.observe, online.start(), part), inner=1, repeat=3) for part in parts)
    yield {
        "case": "four streams",
        "s": total,
        "µs per sample": 1e6 * total / samples,
        "times naive": naive * samples / total,
        "of floor": total / least,
    }


class RandomOffline(OfflineEncoder):
    """The offline encoder without its files."""

    def _check_fetched(self) -> None:
        pass

    def _float_model(self) -> torch.nn.Module:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        torch.manual_seed(0)
        return CLIPVisionModelWithProjection(CLIPVisionConfig(**SIZES)).eval()


def tower(_: Arguments) -> Iterator[Row]:
    encoder = RandomOffline(device="cuda")
    pixels = torch.randint(0, 256, (BATCH, 224, 224, 3), dtype=torch.uint8, device="cuda")
    took = device_seconds(lambda: encoder.vectors(pixels))
    rate = 2.0 * MULTIPLICATIONS * BATCH / took / 1e12
    of_ceiling = rate / measured_ceilings()["bf16 TFLOP/s"]
    yield {"case": f"tower, batch {BATCH}", "images/s": BATCH / took, "TFLOP/s": rate, "of ceiling": of_ceiling}


def files(arguments: Arguments) -> Iterator[Row]:
    """Files to vectors in one process, and in those that share the GPU with `--ray local`."""
    for name, (size, quality) in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            photos = write_files(Path(folder), size, quality, arguments.count)
            for processes, threads in ((1, usable_cores()), (encode.NUMBERS.per_gpu, encode.NUMBERS.threads)):
                seconds = seconds_of_processes(photos, processes, threads)
                yield {"case": name, "processes": processes, "threads": threads, "images/s": arguments.count / seconds}


def seconds_of_processes(photos: str, processes: int, threads: int) -> float:
    """How long the slowest of some processes takes for its share of the files, once all have begun."""
    context = multiprocessing.get_context("spawn")
    begun, took = context.Barrier(processes), context.Queue()
    shares = [(photos, number, processes, threads, begun, took) for number in range(processes)]
    workers = [context.Process(target=encode_share, args=share) for share in shares]
    for worker in workers:
        worker.start()
    seconds: float = max(took.get() for _ in workers)
    for worker in workers:
        worker.join()
    return seconds


def encode_share(photos: str, number: int, processes: int, threads: int, begun: Any, took: Any) -> None:
    reader, entries = make_reader(RandomOffline(device="cuda")), list(find_images(photos))[number::processes]
    run = partial(encode_ahead, reader=reader, size=64, workers=threads)
    list(run(entries[:256]))
    begun.wait()
    started = time.perf_counter()
    list(run(entries))
    took.put(time.perf_counter() - started)


def picture(size: tuple[int, int], seed: int) -> Pillow.Image:
    """A smooth random picture with some grain."""
    generator = np.random.default_rng(seed)
    rough = generator.integers(0, 256, (9, 12, 3), dtype=np.uint8)
    smooth = np.asarray(Pillow.fromarray(rough).resize(size, Pillow.Resampling.BICUBIC), dtype=np.float32)
    grain = generator.normal(0, GRAIN, smooth.shape[:2])[..., None]
    return Pillow.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def write_files(folder: Path, size: tuple[int, int], quality: int, count: int) -> str:
    """A folder of so many JPEG files."""
    photos = folder / "photos"
    photos.mkdir()
    for i in range(min(count, DISTINCT)):
        buffer = io.BytesIO()
        picture(size, i).save(buffer, "JPEG", quality=quality)
        (photos / f"{i:06d}.jpg").write_bytes(buffer.getvalue())
    for i in range(DISTINCT, count):
        os.link(photos / f"{i % DISTINCT:06d}.jpg", photos / f"{i:06d}.jpg")
    return str(photos)


def actors(arguments: Arguments) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        photos = write_files(Path(folder), *PICTURES["500 x 375"], arguments.count)
        job = encode.EncodeJob("offline", None, BATCH)
        arrived, started = list[tuple[float, int]](), time.perf_counter()
        with cluster.connect("local") as ray:
            plan = encode.plan(ray, [photos], Path(folder) / "features", job, size=encode.NUMBERS.shard)
            for shard in encode.run(ray, plan, job):
                arrived.append((time.perf_counter() - started, shard.encoded))
        (first, _), *others = arrived
        running = sum(count for _, count in others) / (others[-1][0] - first)
        yield {"case": "Ray, a model a GPU", "first s": first, "images/s, running": running}


PARTS: Mapping[str, Callable[[Arguments], Iterator[Row]]] = {
    "ceilings": ceilings,
    "scan": scan_rows,
    "tower": tower,
    "files": files,
    "actors": actors,
}

if __name__ == "__main__":
    main()
