"""From JPEG files to unit vectors on a GPU, by the library's own path: `gpu_encode.py --only jpeg` prints it.

Each stage alone first, then whole runs: decoded by Pillow, decoded on the GPU, from files and from memory, read by
processes and by threads, with an eager and a compiled tower. The last bound is a run that reads nothing.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from unseen.encoders.gpu.jpeg import GpuDecoder, decode_jpegs
from unseen.encoders.gpu.resize import GpuResize
from unseen.encoders.offline.encoder import OfflineEncoder
from unseen.features import FeatureCache, encode_images
from unseen.features.encoding import ReadPlan, encode_ahead, encode_batches, make_launcher, read_plan
from unseen.features.reading import ImageReader, Undecoded
from unseen.images import Entry, find_images, read_entries
from unseen.images.ahead import ahead, in_lists, usable_cores
from unseen.images.plain_pool import PlainPool
from unseen_bench.run.jsonl import Row

GRAIN = 2.0  # levels of noise: as many bytes as photos have
DISTINCT = 256  # files; the rest are links to them, so that all are in memory
SIZES = {"500 x 375": ((500, 375), 93), "96 x 72": ((96, 72), 90)}  # width and height, quality
THREADS = ReadPlan(4, 16)
PROCESSES = (ReadPlan(4, 16, True), ReadPlan(8, 64, True), ReadPlan(16, 16, True))  # beside the one of the library
ALONE = (THREADS, ReadPlan(1, 16, True), ReadPlan(4, 16, True), ReadPlan(8, 16, True))


@dataclass(frozen=True)
class Setting:
    """One kind of files, and the encoders that are tried on them."""

    name: str
    entries: Sequence[Entry]
    eager: Any
    compiled: Any
    batch: int

    def first(self, count: int) -> Sequence[Entry]:
        return self.entries[:count]


class Timed:
    """A function and the seconds that were spent in it."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work, self.seconds = work, 0.0

    def __call__(self, *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return self.work(*arguments)
        finally:
            self.seconds += time.perf_counter() - started


@dataclass
class Clock:
    """The time of a run, and of all its threads."""

    wall: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)

    def row(self, case: str, images: int) -> Row:
        wall = time.perf_counter() - self.wall
        return {"case": case, "images/s": images / wall, "images": images, "cores busy": self.cores(wall)}

    def cores(self, wall: float) -> float:
        return (time.process_time() - self.cpu) / wall


def rows(weights: Callable[[], dict[str, Tensor]], batch: int, count: int) -> Iterator[Row]:
    """Yield stages and whole runs for large and for small files."""

    class RandomOffline(OfflineEncoder):
        def _weights(self) -> dict[str, Tensor]:
            return weights()

    eager, compiled = RandomOffline(device="cuda"), RandomOffline(device="cuda", compiled=True)
    yield {"case": "JPEG", "cores": usable_cores(), "processors": os.cpu_count(), "batch": batch}
    yield from tower_rows(eager, compiled, batch)
    for name, (size, quality) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            entries = list(find_images(write_files(Path(folder), size, quality, count)))
            setting = Setting(
                f"{name}, {os.path.getsize(entries[0].path) / 1e3:.0f} kB", entries, eager, compiled, batch
            )
            yield from stage_rows(setting)
            yield from whole_rows(setting, Path(folder))
            yield agreement(setting)


def write_files(folder: Path, size: tuple[int, int], quality: int, count: int) -> str:
    """A folder of so many JPEG files of smooth random pictures with some grain."""
    photos = folder / "photos"
    photos.mkdir()
    with ThreadPoolExecutor(usable_cores()) as pool:
        files = list(pool.map(partial(picture_file, size, quality), range(DISTINCT)))
    for i in range(count):
        if i < DISTINCT:
            (photos / f"{i:06d}.jpg").write_bytes(files[i])
        else:
            os.link(photos / f"{i % DISTINCT:06d}.jpg", photos / f"{i:06d}.jpg")
    return str(photos)


def picture_file(size: tuple[int, int], quality: int, seed: int) -> bytes:
    generator = np.random.default_rng(seed)
    rough = generator.integers(0, 256, (9, 12, 3), dtype=np.uint8)
    smooth = np.asarray(Pillow.fromarray(rough).resize(size, Pillow.Resampling.BICUBIC), dtype=np.float32)
    grain = generator.normal(0, GRAIN, smooth.shape[:2])[..., None]
    buffer = io.BytesIO()
    Pillow.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def seconds(work: Callable[[], object], repeat: int = 5) -> float:
    """The least time of `work` with what it starts on the GPU, after a first run."""
    times = []
    for _ in range(repeat + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


@torch.inference_mode()  # as in a run, so that nothing is compiled twice
def tower_rows(eager: OfflineEncoder, compiled: OfflineEncoder, batch: int) -> Iterator[Row]:
    pixels = torch.randint(0, 256, (batch, 224, 224, 3), dtype=torch.uint8, device="cuda")
    vectors = {}
    for name, encoder in (("eager", eager), ("compiled", compiled)):
        started = time.perf_counter()
        vectors[name] = encoder.vectors(pixels)
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        took = seconds(lambda e=encoder: e.vectors(pixels))
        yield {"case": f"tower alone, {name}", "images/s": batch / took, "first call s": first}
    cosine = (vectors["eager"] * vectors["compiled"]).sum(1)
    yield {"case": "eager and compiled", "mean cosine": float(cosine.mean()), "least cosine": float(cosine.min())}


def stage_rows(setting: Setting) -> Iterator[Row]:
    steps, device = setting.eager.byte_steps, current_device()
    for plan in ALONE:
        yield read_row(setting, "reading alone", ImageReader(steps.cropped, leaves_plain=True), 16_384, plan)
    yield read_row(setting, "Pillow alone", ImageReader(steps.cropped), 2048, ReadPlan(usable_cores(), 4))
    files = [row.file for row in undecoded(setting.first(setting.batch))]
    data = [file.data for file in files]
    took = seconds(lambda: decode_jpegs(data, device))
    yield {"case": f"{setting.name}, nvJPEG alone", "images/s": len(data) / took}
    pictures, resize = decode_jpegs(data, device), GpuResize(steps, device)
    took = seconds(lambda: resize(pictures))
    yield {"case": f"{setting.name}, resizing alone", "images/s": len(data) / took}
    decoder = GpuDecoder(steps, device)
    took = seconds(lambda: decoder(files))
    yield {"case": f"{setting.name}, nvJPEG and resizing", "images/s": len(data) / took}


def current_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def named(plan: ReadPlan) -> str:
    return f"{plan.workers} {'processes' if plan.in_processes else 'threads'}, chunks of {plan.chunk}"


def read_row(setting: Setting, case: str, reader: ImageReader, count: int, plan: ReadPlan) -> Row:
    """Time reading; the processes are started before."""
    with PlainPool(plan.workers) as pool:
        read_all = partial(reader.read_all, pool=pool if plan.in_processes else None)

        def read(entries: Sequence[Entry]) -> int:
            chunks = in_lists(entries, plan.chunk)
            return sum(map(len, ahead(read_all, chunks, workers=plan.workers, most=2 * plan.workers, name="read")))

        read(setting.first(2 * plan.workers * plan.chunk))
        clock = Clock()
        return clock.row(f"{setting.name}, {case}, {named(plan)}", read(setting.first(count)))


def undecoded(entries: Iterable[Entry]) -> list[Undecoded]:
    rows = map(ImageReader(lambda images: torch.empty(0), leaves_plain=True).read, entries)
    return [row for row in rows if isinstance(row, Undecoded)]


def whole_rows(setting: Setting, folder: Path) -> Iterator[Row]:
    eager, compiled = setting.eager, setting.compiled
    yield Run(setting, eager, "eager", decoder="pillow", batch=256).row(setting.first(2048))
    yield Run(setting, eager, "eager").row(setting.first(16_384))
    for _ in range(2):
        yield Run(setting, compiled, "compiled").row(setting.entries)
    for plan in (*PROCESSES, THREADS):
        yield Run(setting, compiled, "compiled", plan=plan).row(setting.first(12_288))
    yield Run(setting, eager, "eager", batch=64).row(setting.first(8192))
    for plan in (None, THREADS):
        here = in_memory(setting.first(12_288))
        yield Run(setting, compiled, "compiled", plan=plan).row(here, "bytes in memory, ")
    yield Run(setting, compiled, "compiled").unread_row()
    clock, cache = Clock(), FeatureCache(folder / "features", compiled)
    done = sum(len(one) for one in encode_images(setting.entries, compiled, cache, size=setting.batch, decoder="gpu"))
    yield clock.row(f"{setting.name}, GPU, compiled, to disk", done)


def in_memory(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Entries whose bytes are here."""
    data = [entry.data() for entry in entries[:DISTINCT] if entry.data is not None]
    return [Entry.of_bytes(str(i), "", partial(bytes, data[i % len(data)])) for i in range(len(entries))]


class Run:
    """Whole runs of one encoder; shares of their time are of the thread that decodes and of the one that launches."""

    def __init__(
        self,
        setting: Setting,
        encoder: Any,
        name: str,
        *,
        decoder: str = "gpu",
        batch: int | None = None,
        plan: ReadPlan | None = None,
    ) -> None:
        launcher = make_launcher(encoder, ImageReader(encoder.prepare), decoder)
        self.setting, self.size, self.reader = setting, batch or setting.batch, launcher.reader
        self.decoder, self._launcher = launcher.decoder, launcher
        self.plan = plan or read_plan(launcher)
        self.name = f"{decoder}, {name}, batch {self.size}"
        self.send, self.launch = Timed(launcher.send), Timed(launcher.launch)

    def row(self, entries: Sequence[Entry], source: str = "") -> Row:
        """Time a run over entries, after a short one."""

        launcher: Any = self

        def run(some: Sequence[Entry]) -> Iterator[int]:
            return (len(one.new) for one in encode_ahead(some, launcher, size=self.size, plan=self.plan))

        sum(run(entries[: 2 * self.size]))
        return self._timed(f"{source}{self.name}, {named(self.plan)}", run(entries))

    def unread_row(self) -> Row:
        """Time a run over files whose bytes and sizes are known: no reading can be faster."""
        rows = undecoded(self.setting.first(self.size))
        batches = [rows] * (len(self.setting.entries) // self.size)

        launcher: Any = self
        return self._timed(f"nothing read, {self.name}", (len(one.new) for one in encode_batches(batches, launcher)))

    def _timed(self, case: str, run: Iterator[int]) -> Row:
        parts = {"thread that decodes": self.send, "thread that launches": self.launch}
        for part in parts.values():
            part.seconds = 0.0
        clock = Clock()
        first = next(run)
        after = time.perf_counter()
        rest = sum(run)
        now = time.perf_counter()
        steady = {"after the first batch": rest / (now - after)}  # without the start of processes
        shares = {name: part.seconds / (now - clock.wall) for name, part in parts.items()}
        return clock.row(f"{self.setting.name}, {case}", first + rest) | steady | shares


def agreement(setting: Setting) -> Row:
    """Compare decoding by Pillow and on the GPU: pixels in levels of 255, vectors by their cosine."""
    encoder, entries = setting.eager, setting.first(DISTINCT)
    (batch,) = read_entries(entries, size=DISTINCT)
    expected = encoder.prepare(batch.images).to("cuda")
    found = GpuDecoder(encoder.byte_steps, current_device())([row.file for row in undecoded(entries)]).pixels
    apart = (expected.int() - found.int()).abs().float()
    one, other = encoder.vectors(expected), encoder.vectors(found)
    cosine = (one * other).sum(1)
    others = (one @ one.T)[~torch.eye(len(one), dtype=torch.bool, device="cuda")]
    levels = {"mean levels": float(apart.mean()), "most levels": float(apart.max())}
    cosines = {"mean cosine": float(cosine.mean()), "least cosine": float(cosine.min())}
    of_two = {"mean cosine of two images": float(others.mean()), "highest of two images": float(others.max())}
    return {"case": f"{setting.name}, Pillow and GPU", **levels, **cosines, **of_two}
