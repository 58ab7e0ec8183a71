"""Measure the ranges of the offline tower's activations: src/unseen/encoders/offline/ranges.safetensors, for int8.

    python tools/measure_ranges.py ../shared/images/eval-imagenet-val5.tar --every 40

Reads every n-th photo of the sources, so that the others can judge the result. The file holds the lowest and highest
value of every channel before every product, 0.3 MB, and no pixel.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from unseen.encoders import preprocess
from unseen.encoders.offline import encoder as offline
from unseen.encoders.offline.fetch import file_sha256
from unseen.encoders.offline.int8 import RANGES
from unseen.encoders.offline.tower import Block, VisionTower
from unseen.images import find_images, read_entries


def inputs(block: Block, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What goes into each product of a block, and the tokens after it."""
    normed = block.norm1.norm(x)
    parts = (part.unflatten(-1, (block.heads, -1)).transpose(1, 2) for part in block.qkv.project(normed).chunk(3, -1))
    mixed = scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
    x = x + block.out.project(mixed)
    normed2 = block.norm2.norm(x)
    hidden = silu(block.fc1.project(normed2))
    return {"qkv": normed, "out": mixed, "fc1": normed2, "fc2": hidden}, x + block.fc2.project(hidden)


@torch.inference_mode()
def measure(tower: VisionTower, pixels: Tensor, ranges: dict[str, Tensor]) -> None:
    """Widen the ranges by those of a batch."""
    x = tower._embed(pixels)
    for number, block in enumerate(tower.blocks):
        found, x = inputs(block, x)
        for layer, rows in found.items():
            low, high = rows.flatten(0, -2).aminmax(dim=0)
            before = ranges.get(f"{number}.{layer}", torch.stack([low, high]))
            ranges[f"{number}.{layer}"] = torch.stack([torch.minimum(before[0], low), torch.maximum(before[1], high)])


def main() -> None:
    """Read the photos, write the ranges, print what they were measured on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", nargs="+", help="folders, lists or .tar files, as `unseen detect` takes them")
    parser.add_argument("--every", type=int, default=40, help="read every n-th photo")
    parser.add_argument("-o", "--output", type=Path, default=RANGES)
    arguments = parser.parse_args()
    tower = VisionTower.build(offline.read_weights(offline.TOWER.verified_path()), heads=offline.HEADS)
    entries = list(find_images(arguments.photos))[:: arguments.every]
    ranges: dict[str, Tensor] = {}
    for batch in read_entries(entries, size=offline.BATCH):
        measure(tower, preprocess.CLIP(batch.images), ranges)
    about = {"tower": offline.TOWER.sha256, "photos": len(entries), "every": arguments.every}
    tensors = {name: rows.half().contiguous() for name, rows in ranges.items()}
    save_file(tensors, arguments.output, metadata={"about": json.dumps(about)})
    print(json.dumps(about | {"bytes": arguments.output.stat().st_size, "sha256": file_sha256(arguments.output)}))


if __name__ == "__main__":
    main()
