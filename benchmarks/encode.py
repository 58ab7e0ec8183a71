"""Photos to verdicts with the offline encoder on a CPU: the runtimes of its tower, and what reading costs beside it.

    python benchmarks/encode.py                     # two cores; minutes
    python benchmarks/encode.py --clock cpu         # CPU seconds, which say more on a busy machine
    python benchmarks/encode.py --images 400 --photos FOLDER    # photos of your own in place of drawn ones

Everything is done as this processor does it, and as two lesser ones would, whose missing instructions are hidden from
torch and OpenVINO (ONNX Runtime sees all). `tower` is a runtime alone, and its ratio is to torch. `files` are JPEG
files on disk to verdicts: beside each size stands what it is of the bare runtime, and how many times the way before
there were other runtimes, smaller scales and threads ahead of the encoder. Cosines are the least to torch in float32 on
whole pictures. All of it alternates in rounds, the best of which counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from PIL import ImageDraw
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate

from unseen import Session, demo
from unseen.encoders import load_encoder
from unseen.encoders.preprocess import CLIP
from unseen.encoders.runtimes import installed_runtimes
from unseen.features.encoding import encode_ahead, make_launcher
from unseen.images import Entry, find_images, read_entries
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.run.timing import alternating_seconds

PROCESSORS: Mapping[str, Mapping[str, str]] = {
    "this processor": {},
    "without bfloat16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "with AVX2 alone": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
SIZES = {"96 pixels": (96, 72), "500 pixels": (500, 375), "12 megapixels": (4000, 3000)}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BATCH = 32  # as `detect` has it


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--images", type=int, default=48, help="of each size (48)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--photos", type=Path, help="a folder of JPEG files, in place of drawn ones")
    parser.add_argument("--processor", choices=PROCESSORS, help="one of the three; all if left out")
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(measure(arguments) if arguments.processor else on_each(), arguments)


def on_each() -> Iterator[Row]:
    """Yield the rows of a process of its own for each: what a processor can do is read once, at the start."""
    for name, hidden in PROCESSORS.items():
        again = [sys.executable, __file__, *sys.argv[1:], "--json", "--processor", name]
        found = subprocess.run(again, env=os.environ | hidden, stdout=subprocess.PIPE, text=True, check=True)
        yield from map(json.loads, found.stdout.splitlines())


def measure(arguments: Arguments) -> Iterator[Row]:
    dtype = torch.float32 if PROCESSORS[arguments.processor] else None
    load = partial(load_encoder, "offline", device="cpu")
    towers: dict[str, Any] = {name: load(dtype=dtype, runtime=name) for name in installed_runtimes()}
    chosen = load(dtype=dtype).runtimes.chosen  # type: ignore[attr-defined]
    clock, exact = CLOCKS[arguments.clock], load(dtype=torch.float32, runtime="torch")
    about = {"processor": arguments.processor}
    with tempfile.TemporaryDirectory() as folder:
        drawn = {name: draw(Path(folder) / name, SIZES[name], arguments.images) for name in arguments.sizes}
        sources = {"own photos": arguments.photos} if arguments.photos else drawn
        entries = {name: list(find_images(source))[: arguments.images] for name, source in sources.items()}
        first = next(iter(entries.values()))
        pixels = CLIP.cropped([entry.read() for entry in first])  # type: ignore[misc]
        works: dict[str, Callable[[], Tensor]] = {name: partial(one.vectors, pixels) for name, one in towers.items()}
        for name, some in entries.items():
            works[f"{name}, before"] = partial(in_turn, some, towers["torch"])
            works[name] = partial(judged, some, towers[chosen])
        vectors = {name: work() for name, work in works.items()}
        seconds = {
            name: min(found) for name, found in alternating_seconds(works, rounds=arguments.rounds, clock=clock).items()
        }
        wanted = {name: in_turn(some, exact) for name, some in entries.items()}
    rate = {name: len(vectors[name]) / took for name, took in seconds.items()}
    for name in towers:
        cosine = least_cosine(vectors[name], exact.vectors(pixels))
        yield {"what": f"tower in {name}", **about, "images/s": rate[name], "times torch": rate[name] / rate["torch"],
               "least cosine": cosine, "is chosen": name == chosen}  # fmt: skip
    for name, whole in wanted.items():
        yield {"what": f"files of {name}", **about, "images/s": rate[name],
               "of the bare runtime": rate[name] / rate[chosen], "times before": rate[name] / rate[f"{name}, before"],
               "least cosine": least_cosine(vectors[name], whole)}  # fmt: skip


def in_turn(entries: list[Entry], encoder: Any) -> Tensor:
    """Encode pictures that are read whole, batch after batch."""
    return torch.cat([encoder.images(batch) for batch in read_entries(entries, size=BATCH)])


def judged(entries: list[Entry], encoder: Any) -> Tensor:
    """Encode and judge as `detect` does."""
    session = Session(demo.load().space)
    found = [batch.z for batch in encode_ahead(entries, make_launcher(encoder), size=BATCH)]
    for z in found:
        session.observe(z)
    return torch.cat(found)


def least_cosine(found: Tensor, wanted: Tensor) -> float:
    return float(cosine_similarity(found, wanted).min())


def draw(folder: Path, size: tuple[int, int], count: int) -> Path:
    """Write pictures of three kinds in turn: soft shapes of all sizes as in photos, a page of text, a fine texture."""
    folder.mkdir()
    for i in range(count):
        picture = (shapes, page, texture)[i % 3](size, torch.Generator().manual_seed(i))
        picture.save(folder / f"{i:04d}.jpg", quality=90)
    return folder


def shapes(size: tuple[int, int], generator: torch.Generator) -> Pillow.Image:
    """Noise of all sizes, the coarser the stronger: the spectrum of photos."""
    width, height = size
    total = torch.zeros(1, 3, height, width)
    for octave in range(2, 11):
        coarse = torch.rand(1, 3, min(height, 3 << octave), min(width, 4 << octave), generator=generator) - 0.5
        total += interpolate(coarse, size=(height, width), mode="bilinear") / 1.6**octave
    return to_picture((total / total.abs().max() + 1) / 2)


def page(size: tuple[int, int], generator: torch.Generator) -> Pillow.Image:
    """Lines of letters, black on white."""
    picture = Pillow.new("RGB", size, "white")
    ink, step = ImageDraw.Draw(picture), max(8, size[1] // 24)
    for top in range(0, size[1], step):
        letters = "".join(map(chr, torch.randint(97, 123, (60,), generator=generator).tolist()))
        ink.text((4, top), letters, fill="black", font_size=0.8 * step)
    return picture


def texture(size: tuple[int, int], generator: torch.Generator) -> Pillow.Image:
    """Waves that are finer than most of a photo, crossing one another."""
    across, down = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="xy")
    period = 3 + 20 * torch.rand(2, generator=generator) * size[1] / 375
    waves = torch.sin(across * 6.28 / period[0]) * torch.sin((down + across / 3) * 6.28 / period[1])
    tint = 0.5 + 0.5 * torch.rand(3, generator=generator)
    return to_picture(((waves + 1) / 2).expand(1, 3, -1, -1) * tint[:, None, None])


def to_picture(values: Tensor) -> Pillow.Image:
    return Pillow.fromarray((255 * values[0].clamp(0, 1)).byte().permute(1, 2, 0).contiguous().numpy())


if __name__ == "__main__":
    main()
