"""Photos to verdicts with the offline encoder on a CPU: the runtimes of its tower, and what reading costs beside it.

    python benchmarks/encode.py                     # two cores; minutes
    python benchmarks/encode.py --clock cpu         # CPU seconds, which say more on a busy machine
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/encode.py --float32    # as a lesser processor

`tower` is a runtime alone, and its ratio is to torch. `files` are JPEG files on disk to verdicts: beside each size
stands what it is of the bare runtime, and how many times the way before there were other runtimes, smaller scales and
threads ahead of the encoder. Cosines are the least to torch in float32 on whole pictures. All of it alternates in
rounds, the best of which counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from torch import Tensor
from torch.nn.functional import cosine_similarity, interpolate

from unseen import Session, demo
from unseen.encoders import load_encoder
from unseen.encoders.preprocess import CLIP
from unseen.encoders.runtimes import installed_runtimes
from unseen.features.encoding import encode_ahead, make_reader
from unseen.images import Entry, find_images, read_entries
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments, alternating_seconds

SIZES = {"96 pixels": (96, 72), "500 pixels": (500, 375), "12 megapixels": (4000, 3000)}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BATCH = 32  # as `detect` has it


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--images", type=int, default=48, help="of each size (48)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--float32", action="store_true", help="as where bfloat16 is not fast")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    load = partial(load_encoder, "offline", device="cpu", dtype=torch.float32 if arguments.float32 else None)
    towers: dict[str, Any] = {name: load(runtime=name) for name in installed_runtimes()}
    chosen = load().runtimes.chosen  # type: ignore[attr-defined]
    exact: Any = load_encoder("offline", device="cpu", dtype=torch.float32, runtime="torch")
    with tempfile.TemporaryDirectory() as folder:
        entries = {
            name: list(find_images(write_pictures(Path(folder) / name, size, arguments.images)))
            for name, size in SIZES.items()
        }
        pixels = CLIP.cropped([entry.read() for entry in next(iter(entries.values()))])  # type: ignore[misc]
        works: dict[str, Callable[[], Tensor]] = {name: partial(one.vectors, pixels) for name, one in towers.items()}
        for name, some in entries.items():
            works[f"{name}, before"] = partial(in_turn, some, towers["torch"])
            works[name] = partial(judged, some, towers[chosen])
        vectors = {name: work() for name, work in works.items()}
        seconds = alternating_seconds(works, rounds=arguments.rounds, clock=CLOCKS[arguments.clock])
        wanted = {name: in_turn(some, exact) for name, some in entries.items()}
    rate = {name: arguments.images / min(times) for name, times in seconds.items()}
    for name in towers:
        cosine = least_cosine(vectors[name], exact.vectors(pixels))
        yield {"what": f"tower in {name}", "images/s": rate[name], "times torch": rate[name] / rate["torch"],
               "least cosine": cosine, "is chosen": name == chosen}  # fmt: skip
    for name, whole in wanted.items():
        yield {"what": f"files of {name}", "images/s": rate[name], "of the bare runtime": rate[name] / rate[chosen],
               "times before": rate[name] / rate[f"{name}, before"],
               "least cosine": least_cosine(vectors[name], whole)}  # fmt: skip


def in_turn(entries: list[Entry], encoder: Any) -> Tensor:
    """Encode pictures that are read whole, batch after batch."""
    return torch.cat([encoder.images(batch) for batch in read_entries(entries, size=BATCH)])


def judged(entries: list[Entry], encoder: Any) -> Tensor:
    """Encode and judge as `detect` does."""
    session = Session(demo.load().space)
    found = [batch.z for batch in encode_ahead(entries, make_reader(encoder), size=BATCH)]
    for z in found:
        session.observe(z)
    return torch.cat(found)


def least_cosine(found: Tensor, wanted: Tensor) -> str:
    return f"{float(cosine_similarity(found, wanted).min()):.5f}"


def write_pictures(folder: Path, size: tuple[int, int], count: int) -> Path:
    """A folder of JPEG files with noise of all sizes, the coarser the stronger: the spectrum of photos."""
    folder.mkdir()
    width, height = size
    for i in range(count):
        total, generator = torch.zeros(1, 3, height, width), torch.Generator().manual_seed(i)
        for octave in range(2, 11):
            coarse = torch.rand(1, 3, min(height, 3 << octave), min(width, 4 << octave), generator=generator) - 0.5
            total += interpolate(coarse, size=(height, width), mode="bilinear") / 1.6**octave
        levels = 127.5 * (total[0] / total.abs().max() + 1)
        picture = Pillow.fromarray(levels.byte().permute(1, 2, 0).contiguous().numpy())
        picture.save(folder / f"{i:04d}.jpg", quality=90)
    return folder


if __name__ == "__main__":
    main()
