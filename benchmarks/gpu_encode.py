"""How fast images become vectors on a GPU: the ViT in several ways, and JPEG files to unit vectors.

python benchmarks/gpu_encode.py --towers ours transformers-compiled --batches 512
python benchmarks/gpu_encode.py --only jpeg --batches 512
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import gpu_images
from gpu import Parts, device_seconds, gpu_parser, measured_ceilings, run_parts
from unseen.encoders.offline.tower import VisionTower
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row


def main() -> None:
    parser = gpu_parser(__doc__, PARTS)
    parser.add_argument("--towers", nargs="+", choices=TOWERS, default=list(TOWERS), help="ways to run the ViT")
    parser.add_argument("--batches", nargs="+", type=int, default=[512, 1024], help="images the ViT gets at once")
    parser.add_argument("--count", type=int, default=24_576, help="images of the longest runs of `jpeg`")
    run_parts(parser, PARTS)


def tower() -> torch.nn.Module:
    """A ViT-B/16 of CLIP's with random weights, as transformers runs it."""
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
    """Go from JPEG files to unit vectors."""
    return gpu_images.rows(lambda: tower().state_dict(), arguments.batches[0], arguments.count)


PARTS: Parts = {"encode": encode, "jpeg": jpeg}

if __name__ == "__main__":
    main()
