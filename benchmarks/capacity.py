"""A capacity plan on paper: what N images take on a cluster, from rates measured on one node.

    python benchmarks/capacity.py                                   # 10^9 images, the rates of docs/performance.md
    python benchmarks/capacity.py --gpu-hour 2.5 --days 3           # your prices, your deadline
    python benchmarks/capacity.py --gpu-decode 5200 --image-kb 110  # your rates, your images

Rates are measured, one node each, and add up over nodes only as far as storage and network keep up: that was not
measured. Prices are assumptions, not quotes: put in your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from unseen.bench import command, markdown_table

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
    parser = command.parser(__doc__)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--days", type=float, default=1.0, help="when it must be done")
    for name, (value, what) in {**RATES, **OTHERS, **PRICES}.items():
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} ({value:g})")
    given = vars(command.parse(parser))
    print("\n".join([*gpu_table(given), "", *other_table(given)]))


def gpu_table(given: dict[str, float]) -> Iterator[str]:
    images = given["images"]
    heads = (f"{images:,.0f} images", "images/s per GPU", "GPU hours", f"GPUs for {given['days']:g} days")
    return markdown_table((*heads, "MB/s in, per GPU", "dollars per million"), map(rate_cells(given), RATES.items()))


def rate_cells(given: dict[str, float]) -> Callable[[tuple[str, tuple[float, str]]], tuple[str, ...]]:
    def cells(item: tuple[str, tuple[float, str]]) -> tuple[str, ...]:
        name, (_, what) = item
        rate, images = given[name.replace("-", "_")], given["images"]
        hours = images / rate / 3600
        need = math.ceil(hours / (24 * given["days"]))
        price = hours * given["gpu_hour"] / images * MILLION
        megabytes = rate * given["image_kb"] / 1e3
        return what, f"{rate:,.0f}", f"{hours:,.1f}", str(need), f"{megabytes:,.0f}", f"{price:.2f}"

    return cells


def other_table(given: dict[str, float]) -> Iterator[str]:
    images, per_core = given["images"], given["cpu_decode"] / given["cores"]
    stored = images * given["image_kb"] / 1e9
    features = images * (2 * given["dim"] + given["row_bytes"]) / 1e12
    lines = {
        "cores that decode for one GPU at the rate of the tower": f"{given['tower'] / per_core:,.0f}",
        "dollars per million to decode on such cores": f"{MILLION / per_core / 3600 * given['core_hour']:.2f}",
        "images, TB": f"{stored:,.1f}",
        "features in half precision with keys, TB": f"{features:,.2f}",
        "dollars a month to keep both": f"{(stored + features) * given['tb_month']:,.0f}",
        "dollars to read all images once": f"{stored * given['tb_out']:,.0f}",
        "hours to score them all as one stream, one GPU": f"{images * given['score_gpu'] / 3.6e9:.2f}",
        "hours to score them all as one stream, two cores": f"{images * given['score_cpu'] / 3.6e9:.1f}",
    }
    return markdown_table(("besides", ""), lines.items())


if __name__ == "__main__":
    main()
