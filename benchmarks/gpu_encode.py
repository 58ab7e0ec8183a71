"""How fast images become vectors on a GPU: the tower alone, and JPEG files to vectors by the library's own path.

    python benchmarks/gpu_encode.py --batches 256 512
    python benchmarks/gpu_encode.py --only files --batches 512

The tower is the offline one with random weights. Files are decoded by Pillow, and on the GPU where torchvision can.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from gpu import Parts, device_seconds, gpu_parser, measured_ceilings, run_parts
from unseen.encoders.gpu_jpeg import resized
from unseen.encoders.offline.encoder import SIZES, OfflineEncoder
from unseen.errors import EncoderError, MissingExtra
from unseen.features.encoding import DECODERS, encode_ahead, make_launcher
from unseen.images import Entry, Image, find_images
from unseen.images.prefetch import usable_cores
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row

MULTIPLICATIONS = 12 * (197 * 12 * 768**2 + 2 * 197**2 * 768) + 196 * 768**2 + 768 * 512  # of an image, as a textbook
PICTURES = {"500 x 375": ((500, 375), 93), "96 x 72": ((96, 72), 90)}  # width and height, quality
DISTINCT = 256  # files; the rest are links to them, so that all are in memory
GRAIN = 2.0  # levels of noise: as many bytes as photos have


class RandomOffline(OfflineEncoder):
    """The offline encoder without its files."""

    def _check_fetched(self) -> None:
        pass

    def _float_model(self) -> torch.nn.Module:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        torch.manual_seed(0)
        return CLIPVisionModelWithProjection(CLIPVisionConfig(**SIZES)).eval()


def main() -> None:
    parser = gpu_parser(__doc__, PARTS)
    parser.add_argument("--batches", nargs="+", type=int, default=[512], help="images the tower gets at once")
    parser.add_argument("--count", type=int, default=8192, help="files of the longest runs")
    run_parts(parser, PARTS)


def tower(arguments: Arguments) -> Iterator[Row]:
    encoder = RandomOffline(device="cuda")
    for batch in arguments.batches:
        pixels = torch.randint(0, 256, (batch, 224, 224, 3), dtype=torch.uint8, device="cuda")
        took = device_seconds(lambda x=pixels: encoder.vectors(x))
        rate = 2.0 * MULTIPLICATIONS * batch / took / 1e12
        yield {"case": f"tower, batch {batch}", "images/s": batch / took, "TFLOP/s": rate,
               "of ceiling": rate / measured_ceilings()["bf16 TFLOP/s"]}  # fmt: skip


def files(arguments: Arguments) -> Iterator[Row]:
    encoder, batch = RandomOffline(device="cuda"), arguments.batches[0]
    for name, (size, quality) in PICTURES.items():
        yield agreement(encoder, name, [picture(size, seed) for seed in range(32)])
        with tempfile.TemporaryDirectory() as folder:
            entries = list(find_images(write_files(Path(folder), size, quality, arguments.count)))
            for decoder in DECODERS:
                yield {"case": f"{name}, {decoder}", "cores": usable_cores(), **run(encoder, entries, decoder, batch)}


def run(encoder: RandomOffline, entries: Sequence[Entry], decoder: str, batch: int) -> Row:
    """The rate of a run over files after a short one."""
    try:
        launcher = make_launcher(encoder, decoder)
    except (EncoderError, MissingExtra) as error:
        return {"images/s": None, "why": str(error)}
    count = len(entries) if decoder == "gpu" else min(len(entries), 2048)
    list(encode_ahead(entries[: 2 * batch], launcher, size=batch))
    started = time.perf_counter()
    done = sum(len(one.new) for one in encode_ahead(entries[:count], launcher, size=batch))
    return {"images/s": done / (time.perf_counter() - started), "images": done}


@torch.inference_mode()
def agreement(encoder: RandomOffline, name: str, pictures: Sequence[Pillow.Image]) -> Row:
    """Vectors of pictures that torch resizes on the GPU against those that Pillow resizes."""
    steps = encoder.byte_steps
    expected = encoder.vectors(steps.cropped([Image("", one) for one in pictures]))
    on_gpu: list[Tensor] = [torch.from_numpy(np.array(one)).permute(2, 0, 1).cuda() for one in pictures]
    found = encoder.vectors(torch.stack([resized(one, steps) for one in on_gpu]))
    took = device_seconds(lambda: [resized(one, steps) for one in on_gpu])
    cosine = (expected * found).sum(1)
    return {"case": f"{name}, resized by torch", "images/s": len(pictures) / took,
            "mean cosine": float(cosine.mean()), "least cosine": float(cosine.min())}  # fmt: skip


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


PARTS: Parts = {"tower": tower, "files": files}

if __name__ == "__main__":
    main()
