"""How fast images become vectors on a GPU: the ViT in several ways, and JPEG bytes to unit vectors.

python benchmarks/gpu_encode.py --towers ours transformers-compiled --batches 512
python benchmarks/gpu_encode.py --only jpeg --images FOLDER
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gpu import Parts, device_seconds, gpu_parser, measured_ceilings, run_parts
from unseen.bench.command import Arguments
from unseen.bench.jsonl import Row
from unseen.bench.timing import median_seconds
from unseen.encoders.offline.tower import VisionTower


def main() -> None:
    parser = gpu_parser(__doc__, PARTS)
    parser.add_argument("--towers", nargs="+", choices=TOWERS, default=list(TOWERS), help="ways to run the ViT")
    parser.add_argument("--batches", nargs="+", type=int, default=[512, 1024], help="images the ViT gets at once")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files, for `jpeg`")
    run_parts(parser, PARTS)


def tower() -> torch.nn.Module:
    """Return a ViT-B/16 of CLIP's with random weights, as transformers runs it."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(0)
    config = CLIPVisionConfig(patch_size=16, projection_dim=512, hidden_act="quick_gelu", attn_implementation="sdpa")
    return CLIPVisionModelWithProjection(config).eval().cuda().to(torch.bfloat16)


def ours(**options: Any) -> VisionTower:
    return VisionTower.build(tower().state_dict(), heads=12, dtype=torch.bfloat16, device="cuda", **options)


TOKENS, WIDTH, DEPTH = 197, 768, 12
TEXTBOOK = DEPTH * (TOKENS * 12 * WIDTH**2 + 2 * TOKENS**2 * WIDTH) + 196 * WIDTH**2 + WIDTH * 512
# nobody reads the last block's other tokens: there they are keys and values only
LEAN = TEXTBOOK - (TOKENS - 1) * (12 - 2) * WIDTH**2 - 2 * (TOKENS - 1) * TOKENS * WIDTH
NARROW = {"residual": torch.bfloat16, "patch": torch.bfloat16}
TOWERS: dict[str, tuple[int, Callable[[], Callable[[Tensor], object]]]] = {  # multiplications of an image, and the way
    "ours": (LEAN, lambda: ours().images),
    "ours-narrow-compiled": (LEAN, lambda: ours(**NARROW).compiled()),
    "ours-narrow-autotuned": (LEAN, lambda: ours(**NARROW).compiled(AUTOTUNE)),
    "transformers-compiled": (TEXTBOOK, lambda: torch.compile(tower())),
    "ours-compiled": (LEAN, lambda: ours().compiled()),
    "ours-autotuned": (LEAN, lambda: ours().compiled(AUTOTUNE)),
    "ours-bf16-patches-compiled": (LEAN, lambda: ours(patch=torch.bfloat16).compiled()),
    "transformers": (TEXTBOOK, lambda: tower()),
}
AUTOTUNE = "max-autotune-no-cudagraphs"


def encode(arguments: Arguments) -> Iterator[Row]:
    """Time the ViT in several ways; the share of the ceiling counts the multiplications done, not the textbook's."""
    for batch, name in itertools.product(arguments.batches, arguments.towers):
        multiplies, build = TOWERS[name]
        torch._dynamo.reset()
        run = build()
        images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        with torch.inference_mode():
            started = time.perf_counter()
            run(images)
            torch.cuda.synchronize()
            first = time.perf_counter() - started
            took = device_seconds(lambda r=run, x=images: r(x), inner=5, repeat=5)
        rate = 2.0 * multiplies * batch / took / 1e12
        yield {"case": f"ViT-B/16 bf16, {name}, {batch}", "images/s": batch / took, "TFLOP/s": rate,
               "GFLOP per image": 2e-9 * multiplies, "of ceiling": rate / measured_ceilings()["bf16 TFLOP/s"],
               "first call s": first}  # fmt: skip


def jpeg(arguments: Arguments) -> Iterator[Row]:
    """Go from JPEG bytes to unit vectors, decoding on the CPU's cores or on the GPU."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2.functional import center_crop, resize

    if arguments.images is None:
        return
    model = tower()
    small = [
        torch.frombuffer(bytearray(p.read_bytes()), dtype=torch.uint8) for p in sorted(arguments.images.glob("*.jpg"))
    ]
    cores = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(cores)
    mean = torch.tensor([0.481, 0.458, 0.408], device="cuda").view(-1, 1, 1)
    deviation = torch.tensor([0.269, 0.261, 0.276], device="cuda").view(-1, 1, 1)

    def squared(image: Tensor) -> Tensor:
        return center_crop(resize(image, [224], antialias=True), [224, 224])

    def on_cpu(data: list[Tensor]) -> Tensor:
        images = list(pool.map(lambda x: squared(decode_jpeg(x, mode=ImageReadMode.RGB)), data))
        return torch.stack(images).pin_memory().cuda(non_blocking=True)

    def on_gpu(data: list[Tensor]) -> Tensor:
        return torch.stack([squared(x) for x in decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")])

    def vectors(pixels: Tensor) -> Tensor:
        batch = ((pixels.float() / 255 - mean) / deviation).to(torch.bfloat16)
        return normalize(model(pixel_values=batch).image_embeds.float(), dim=-1)

    torch.set_num_threads(1)
    for size, files in (("as they are", small), ("at 500 x 375", [enlarged(x) for x in small[:64]])):
        data = (files * -(-512 // len(files)))[:512]
        for name, decode in (("CPU", on_cpu), ("GPU", on_gpu)):
            with torch.inference_mode():
                alone = median_seconds(lambda d=decode, x=data: d(x), repeat=3)
                both = median_seconds(lambda d=decode, x=data: vectors(d(x)), repeat=3)
            yield {"case": f"JPEG {size}, {name}", "images/s": len(data) / both, "decoding and resizing": alone / both,
                   "bytes per image": sum(len(x) for x in data) / len(data), "cores": cores}  # fmt: skip


def enlarged(data: Tensor) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
    from torchvision.transforms.v2.functional import resize

    return encode_jpeg(resize(decode_jpeg(data, mode=ImageReadMode.RGB), [375, 500], antialias=True), quality=95)


PARTS: Parts = {"encode": encode, "jpeg": jpeg}

if __name__ == "__main__":
    main()
