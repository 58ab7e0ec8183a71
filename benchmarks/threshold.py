"""What the adaptive line keeps and rejects, on stored CLIP features: the figures on thresholds in docs/method.md.

    python benchmarks/threshold.py FOLDER                                # every suite, order and wanted recall; minutes
    python benchmarks/threshold.py FOLDER --suite imagenet200 --seeds 3
    python benchmarks/threshold.py FOLDER --rows rows.jsonl              # goes on where a killed run stopped

For each stream of the default detector: the realised recall of known images and the share of unknown images rejected,
in percent, over the whole stream for each wanted recall and over its first images for the middle one. CIFAR suites read
names with the offline text tower (`unseen models fetch offline`). Sets of 10,000 images are thinned to 3,000.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen import suites
from unseen.detectors import PooledEvidence
from unseen.threshold import Adaptive
from unseen.trial import Trial

SETS = {
    "imagenet200": ("near", "textures10", "intel_scenes", "flowers102", "mnist"),
    "imagenet200-lowres": ("textures10", "flowers102"),
    "imagenet1k-surrogate": ("textures10", "intel_scenes", "flowers102"),
    "cifar10": ("cifar100", "textures10", "intel_scenes", "flowers102", "mnist"),
    "cifar100": ("textures10", "intel_scenes", "flowers102", "mnist"),
}
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"kind": "shuffled"},
    "ID first": {"kind": "id_first"},
    "OOD first": {"kind": "ood_first"},
    "10 ID : 1 OOD": {"kind": "mixture", "ood_share": 1 / 11},
    "1 ID : 10 OOD": {"kind": "mixture", "ood_share": 10 / 11},
    "ID only": {"kind": "id_only"},
    "OOD only": {"kind": "ood_only"},
}
WANTED = (90, 95, 99)
LENGTHS = (50, 100, 200)
MOST = 3000
TOLERANCE = 3.0

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the stored features")
    parser.add_argument("--suite", action="append", choices=SETS, help="only this one; may be given again")
    parser.add_argument("--order", action="append", choices=ORDERS, help="only this one; may be given again")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="JSON lines to go on from and to append to")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    show(list(rows(arguments)))


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield one row per stream, computing only those that the file has not."""
    path: Path | None = arguments.rows
    lines = path.read_text().splitlines() if path and path.exists() else []
    done = {json.dumps(row["key"]): row for row in map(json.loads, lines)}
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name in arguments.suite or SETS:
        key: Any
        for key in (
            [name, ood, order, seed] for ood in SETS[name] for order in arguments.order or ORDERS for seed in seeds
        ):
            if json.dumps(key) not in done:
                row = {"key": key, **stream(arguments.folder, *key)}
                done[json.dumps(key)] = row
                if path:
                    with path.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            yield done[json.dumps(key)]


@functools.cache
def suite(name: str, folder: str) -> suites.Suite:
    return suites.load(name, folder)


def stream(folder: str, name: str, ood: str, order: str, seed: int) -> Row:
    """Return what was kept and rejected in one stream, for each wanted recall and, for the middle one, early on."""
    trial = thinned(suite(name, folder).against(ood), seed).ordered(**ORDERS[order], seed=seed)
    detector = PooledEvidence(suite(name, folder).labels)
    reading, _ = detector.observe(detector.start(), trial.z)
    row: Row = {}
    for wanted in WANTED:
        rule = Adaptive(wanted / 100, derives_baseline=True)
        decisions, _ = rule.learn(rule.start(), reading.margin)
        known = reading.margin >= decisions.threshold
        row[f"at{wanted}"] = shares(known, trial.is_id)
        if wanted == WANTED[1]:
            row |= {f"first{length}": shares(known[:length], trial.is_id[:length]) for length in LENGTHS}
    return row


def thinned(trial: Trial, seed: int) -> Trial:
    """Return at most MOST samples of each side."""
    generator = torch.Generator().manual_seed(seed)
    sides = [side.nonzero().squeeze(1) for side in (trial.is_id, ~trial.is_id)]
    return trial[torch.cat([side[torch.randperm(len(side), generator=generator)[:MOST]] for side in sides])]


def shares(known: Tensor, is_id: Tensor) -> tuple[float, float]:
    """Return how much of the known was kept and of the unknown rejected, in percent; NaN where there was none."""
    kept, rejected = known[is_id].double().mean(), (~known[~is_id]).double().mean()
    return 100 * float(kept), 100 * float(rejected)


def show(found: list[Row]) -> None:
    columns = [f"at{wanted}" for wanted in WANTED] + [f"first{length}" for length in LENGTHS]
    titles = [f"wanted {wanted} %" for wanted in WANTED] + [f"first {length}" for length in LENGTHS]
    print("kept of the known / rejected of the unknown, in percent, mean over seeds")
    print(f"| set | order | {' | '.join(titles)} |\n|{'---|' * (2 + len(columns))}")
    for name, ood, order in dict.fromkeys(tuple(row["key"][:3]) for row in found):
        group = [row for row in found if row["key"][:3] == [name, ood, order]]
        print(f"| {name} {ood} | {order} | {' | '.join(both(group, column) for column in columns)} |")
    print(f"\n| suite | order | {' | '.join(titles)} |\n|{'---|' * (2 + len(columns))}")
    for name, order in dict.fromkeys((row["key"][0], row["key"][2]) for row in found):
        group = [row for row in found if row["key"][0] == name and row["key"][2] == order]
        print(f"| {name}, mean | {order} | {' | '.join(both(group, column) for column in columns)} |")
    print(
        "\nrealised recall against the wanted one, by suite; both kinds of one-sided streams included where they apply"
    )
    for name in dict.fromkeys(row["key"][0] for row in found):
        for wanted in WANTED:
            print(f"{name}: wanted {wanted} %: {off(found, name, wanted)}")


def both(group: list[Row], column: str) -> str:
    kept, rejected = zip(*(row[column] for row in group), strict=True)
    return f"{average(kept)} / {average(rejected)}"


def average(values: tuple[float, ...]) -> str:
    real = [value for value in values if not math.isnan(value)]
    return f"{statistics.fmean(real):.1f}" if real else "-"


def off(found: list[Row], name: str, wanted: int) -> str:
    kept = [row[f"at{wanted}"][0] - wanted for row in found if row["key"][0] == name]
    kept = [value for value in kept if not math.isnan(value)]
    below, above = sum(value < -TOLERANCE for value in kept), sum(value > TOLERANCE for value in kept)
    return (
        f"off by {min(kept):+.1f} to {max(kept):+.1f}, {statistics.fmean(kept):+.1f} on average of {len(kept)}; "
        f"{below} more than {TOLERANCE:g} points under, {above} over"
    )


if __name__ == "__main__":
    main()
