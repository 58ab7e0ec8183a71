"""From JPEG files to unit vectors on a GPU, by the library's own path: `gpu_encode.py --only jpeg` prints it.

Each stage alone first, then whole runs: in step, read ahead, decoded on the GPU, with an eager and a compiled tower.
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

from unseen.bench.jsonl import Row
from unseen.encoders.gpu.jpeg import GpuDecoder, PlainJpeg, decode_jpegs
from unseen.encoders.gpu.resize import GpuResize
from unseen.encoders.offline.encoder import OfflineEncoder
from unseen.features import FeatureCache, encode_images
from unseen.features.encoding import CHUNK, encode_ahead, make_launcher
from unseen.features.reading import ImageReader, Undecoded
from unseen.images import Entry, find_images, read_entries
from unseen.images.ahead import ahead, in_lists, usable_cores

GRAIN = 2.0  # levels of noise: as many bytes as photos have
DISTINCT = 256  # files; the rest are links to them, so that all are in memory
SIZES = {"500 x 375": ((500, 375), 93), "96 x 72": ((96, 72), 90)}  # width and height, quality
WIDTHS = ((4, 16), (16, 16), (16, 4), (4, 4))  # images of a chunk, threads that read


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
    """Return a folder of so many JPEG files of smooth random pictures with some grain."""
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
    """Return the least time of `work` with what it starts on the GPU, after a first run."""
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
    for chunk, workers in WIDTHS:
        yield read_row(setting, "reading alone", ImageReader(steps.cropped, leaves_plain=True), 8192, chunk, workers)
    yield read_row(setting, "Pillow alone", ImageReader(steps.cropped), 4096, CHUNK, usable_cores())
    files = plain_files(setting.first(setting.batch))
    data = [file.data for file in files]
    took = seconds(lambda: decode_jpegs(data, device))
    yield {"case": f"{setting.name}, nvJPEG alone", "images/s": len(data) / took}
    pictures, resize = decode_jpegs(data, device), GpuResize(steps, device)
    started = time.perf_counter()
    resize(pictures)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    took = seconds(lambda: resize(pictures))
    yield {"case": f"{setting.name}, resizing alone", "images/s": len(data) / took, "first call s": first}
    decoder = GpuDecoder(steps, device)
    took = seconds(lambda: decoder(files))
    yield {"case": f"{setting.name}, nvJPEG and resizing", "images/s": len(data) / took}


def current_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def read_row(setting: Setting, case: str, reader: ImageReader, count: int, chunk: int, workers: int) -> Row:
    entries, clock = setting.first(count), Clock()
    chunks = in_lists(iter(entries), chunk)
    done = sum(len(some) for some in ahead(reader.read_all, chunks, workers=workers, most=2 * workers, name="read"))
    return clock.row(f"{setting.name}, {case}, {workers} threads, chunks of {chunk}", done)


def plain_files(entries: Iterable[Entry]) -> list[PlainJpeg]:
    rows = map(ImageReader(lambda images: torch.empty(0), leaves_plain=True).read, entries)
    return [row.file for row in rows if isinstance(row, Undecoded)]


def whole_rows(setting: Setting, folder: Path) -> Iterator[Row]:
    list(in_step(setting.first(64), setting.eager, 64))
    clock = Clock()
    done = sum(map(len, in_step(setting.first(1024), setting.eager, 256)))
    yield clock.row(f"{setting.name}, Pillow, in step", done)
    yield ahead_row(setting, setting.eager, "pillow", 4096, 256)
    for encoder, name in ((setting.eager, "eager"), (setting.compiled, "compiled")):
        for _ in range(2):
            yield ahead_row(setting, encoder, "gpu", len(setting.entries), setting.batch, name=name)
    for chunk, workers in WIDTHS[1:]:
        part = ahead_row(setting, setting.compiled, "gpu", 16_384, setting.batch, chunk, workers, name="compiled")
        yield part
    yield ahead_row(setting, setting.eager, "gpu", 16_384, 64, name="eager")
    clock, encoder = Clock(), setting.compiled
    cache = FeatureCache(folder / "features", encoder)
    done = sum(len(one) for one in encode_images(setting.entries, encoder, cache, size=setting.batch, decoder="gpu"))
    yield clock.row(f"{setting.name}, GPU, compiled, to disk", done)


def in_step(entries: Iterable[Entry], encoder: OfflineEncoder, size: int) -> Iterator[Tensor]:
    """Yield vectors as a CPU's path makes them: a batch is decoded ahead, prepared and encoded in step."""
    for batch in read_entries(entries, size=size):
        yield encoder.images(batch.images).cpu()


def ahead_row(
    setting: Setting,
    encoder: Any,
    decoder: str,
    count: int,
    size: int,
    chunk: int = CHUNK,
    workers: int | None = None,
    name: str = "eager",
) -> Row:
    """Time a run that reads ahead; the shares are of the thread that launches."""
    launcher = make_launcher(encoder, ImageReader(encoder.prepare), decoder)
    decoding, launching = Timed(launcher.decoder or (lambda: None)), Timed(launcher.vectors)
    whole = Timed(launcher.__call__)
    launcher.vectors = launching
    if launcher.decoder is not None:
        launcher.decoder = decoding  # type: ignore[assignment]
    runner: Any = Launching(launcher, whole)
    for _ in encode_ahead(setting.first(2 * size), runner, size=size, chunk=chunk, workers=workers):
        pass
    decoding.seconds = launching.seconds = whole.seconds = 0.0
    clock = Clock()
    done = sum(
        len(one.new) for one in encode_ahead(setting.first(count), runner, size=size, chunk=chunk, workers=workers)
    )
    wall = time.perf_counter() - clock.wall
    where = f"{setting.name}, {decoder}, {name}, batch {size}, {workers or usable_cores()} threads, chunks of {chunk}"
    shares = {"thread that launches": whole.seconds / wall, "decoding": decoding.seconds / wall}
    return clock.row(where, done) | shares | {"launching": launching.seconds / wall}


class Launching:
    """A launcher whose calls are timed."""

    def __init__(self, launcher: Any, timed: Timed) -> None:
        self.reader, self._timed = launcher.reader, timed

    def __call__(self, rows: Any) -> Any:
        return self._timed(rows)


def agreement(setting: Setting) -> Row:
    """Compare decoding by Pillow and on the GPU: pixels in levels of 255, vectors by their cosine."""
    encoder, entries = setting.eager, setting.first(DISTINCT)
    (batch,) = read_entries(entries, size=DISTINCT)
    expected = encoder.prepare(batch.images).to("cuda")
    found = GpuDecoder(encoder.byte_steps, current_device())(plain_files(entries)).pixels
    apart = (expected.int() - found.int()).abs().float()
    one, other = encoder.vectors(expected), encoder.vectors(found)
    cosine = (one * other).sum(1)
    others = (one @ one.T)[~torch.eye(len(one), dtype=torch.bool, device="cuda")]
    levels = {"mean levels": float(apart.mean()), "most levels": float(apart.max())}
    cosines = {"mean cosine": float(cosine.mean()), "least cosine": float(cosine.min())}
    of_two = {"mean cosine of two images": float(others.mean()), "highest of two images": float(others.max())}
    return {"case": f"{setting.name}, Pillow and GPU", **levels, **cosines, **of_two}
