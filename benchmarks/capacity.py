"""A capacity plan on paper: what N images take on a cluster, from rates measured on one node.

    python benchmarks/capacity.py                                   # 10^9 images, the rates of docs/performance.md
    python benchmarks/capacity.py --gpu-hour 2.5 --days 3           # your prices, your deadline
    python benchmarks/capacity.py --gpu-decode 5200 --image-kb 110  # your rates, your images

Rates are measured, one node each, and add up over nodes only as far as storage and network keep up: that was not
measured. Prices are assumptions, not quotes: put in your own.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

MILLION = 1e6
RATES = {  # images per second, docs/performance.md: one H200 with 16 cores, JPEG of 500 x 375, 39 kB
    "tower": (11_670, "ViT-B/16 in bf16, torch.compile, pixels already on the GPU"),
    "gpu-decode": (3_961, "JPEG bytes to vectors, decoded on the GPU, eager tower, no overlap"),
    "cpu-decode": (693, "JPEG bytes to vectors, decoded on 16 cores, eager tower, no overlap"),
}
OTHERS = {
    "score-gpu": (1.71, "µs per sample of Algorithm 1 on the GPU, 1,000 names, 10,000 negatives"),
    "score-cpu": (144.0, "µs per sample of the default on two cores, the same sizes (README)"),
    "image-kb": (39.0, "kB of an image"),
    "dim": (512, "numbers of a feature, two bytes each"),
    "row-bytes": (64, "bytes of key and bookkeeping beside a feature"),
    "cores": (16, "CPU cores beside a GPU"),
}
PRICES = {  # assumed
    "gpu-hour": (4.0, "dollars of one GPU for an hour, with the cores beside it"),
    "core-hour": (0.05, "dollars of one CPU core for an hour"),
    "tb-month": (23.0, "dollars of a TB in an object store for a month"),
    "tb-out": (0.0, "dollars of a TB read across regions or clouds; 0 where compute sits beside the data"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--days", type=float, default=1.0, help="when it must be done")
    for name, (value, what) in {**RATES, **OTHERS, **PRICES}.items():
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} ({value:g})")
    print("\n".join(plan(vars(parser.parse_args()))))


def plan(given: dict[str, float]) -> Iterator[str]:
    images, bytes_in = given["images"], given["image_kb"] * 1e3
    needed = f"GPUs for {given['days']:g} days"
    yield f"| {images:,.0f} images | images/s per GPU | GPU hours | {needed} | MB/s in, per GPU | dollars per million |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, (_, what) in RATES.items():
        rate = given[name.replace("-", "_")]
        hours = images / rate / 3600
        need = math.ceil(hours / (24 * given["days"]))
        price = hours * given["gpu_hour"] / images * MILLION
        stream = rate * bytes_in / 1e6
        yield f"| {what} | {rate:,.0f} | {hours:,.1f} | {need} | {stream:,.0f} | {price:.2f} |"
    per_core = given["cpu_decode"] / given["cores"]
    feature = 2 * given["dim"] + given["row_bytes"]
    stored = {"images": images * bytes_in / 1e12, "features": images * feature / 1e12}
    yield ""
    yield "| besides | |"
    yield "|---|--:|"
    yield f"| cores that decode for one GPU at the rate of the tower | {given['tower'] / per_core:,.0f} |"
    yield f"| dollars per million to decode on such cores | {MILLION / per_core / 3600 * given['core_hour']:.2f} |"
    yield f"| images, TB | {stored['images']:,.1f} |"
    yield f"| features in half precision with keys, TB | {stored['features']:,.2f} |"
    month = sum(stored.values()) * given["tb_month"]
    yield f"| dollars a month to keep both | {month:,.0f} |"
    yield f"| dollars to read all images once | {stored['images'] * given['tb_out']:,.0f} |"
    yield f"| hours to score them all as one stream, one GPU | {images * given['score_gpu'] / 3.6e9:.2f} |"
    yield f"| hours to score them all as one stream, two cores | {images * given['score_cpu'] / 3.6e9:.1f} |"


if __name__ == "__main__":
    main()
