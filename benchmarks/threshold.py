"""What the adaptive threshold keeps and rejects, on stored CLIP features: the figures in docs/method.md.

    python benchmarks/threshold.py FOLDER                                # every suite, order and wanted recall; minutes
    python benchmarks/threshold.py FOLDER --suites imagenet200 --seeds 3
    python benchmarks/threshold.py FOLDER --rows rows.jsonl              # resumes where a killed run stopped

For each stream of the recommended detector: the realised recall of known images and the share of unknown images
rejected, in percent, over the whole stream for each wanted recall and over its first images for the middle one. CIFAR
suites read names with the offline text tower (`unseen models fetch offline`). Sets of 10,000 images are thinned to
3,000.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pooled import SETS, load_suite
from unseen.bench import Case, Row, command, grouped, markdown_table, mean
from unseen.bench.command import Arguments
from unseen.detectors import PooledEvidence
from unseen.threshold import Adaptive
from unseen.trial import Trial

CIFAR = ("textures10", "intel_scenes", "flowers102", "mnist")
SUITES = {**SETS, "cifar10": ("cifar100", *CIFAR), "cifar100": CIFAR}
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
COLUMNS = {f"at{wanted}": f"wanted {wanted} %" for wanted in WANTED} | {f"first{n}": f"first {n}" for n in LENGTHS}
MOST = 3000
TOLERANCE = 3.0


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=1)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    arguments = command.parse(parser)
    command.answer(cases(arguments), arguments, tables)


def cases(arguments: Arguments) -> Iterator[Case]:
    for name in arguments.suites:
        for ood in SUITES[name]:
            for order in arguments.orders:
                for seed in command.seeds(arguments):
                    key = {"suite": name, "set": ood, "order": order, "seed": seed}
                    yield Case(key, functools.partial(judge, arguments.folder, **key))


def judge(folder: Path, *, suite: str, set: str, order: str, seed: int) -> Row:
    """Return what was kept and rejected in one stream, for each wanted recall and, for the middle one, early on."""
    loaded = load_suite(suite, folder)
    trial = thin(loaded.against(set), seed).ordered(**ORDERS[order], seed=seed)
    detector = PooledEvidence(loaded.labels)
    reading, _ = detector.observe(detector.start(), trial.z)
    row: Row = {}
    for wanted in WANTED:
        rule = Adaptive(wanted / 100, derives_baseline=True)
        decisions, _ = rule.learn(rule.start(), reading.margin)
        known = reading.margin >= decisions.threshold
        row |= shares(f"at{wanted}", known, trial.is_id)
        if wanted == WANTED[1]:
            for length in LENGTHS:
                row |= shares(f"first{length}", known[:length], trial.is_id[:length])
    return row


def thin(trial: Trial, seed: int) -> Trial:
    """Return at most MOST samples of each side."""
    generator = torch.Generator().manual_seed(seed)
    sides = [side.nonzero().squeeze(1) for side in (trial.is_id, ~trial.is_id)]
    return trial[torch.cat([side[torch.randperm(len(side), generator=generator)[:MOST]] for side in sides])]


def shares(name: str, known: Tensor, is_id: Tensor) -> Row:
    """Return how much of the known was kept and of the unknown rejected, in percent; NaN where there was none."""
    kept, rejected = known[is_id].double().mean(), (~known[~is_id]).double().mean()
    return {f"{name}_kept": 100 * float(kept), f"{name}_rejected": 100 * float(rejected)}


def tables(rows: list[Row]) -> Iterator[str]:
    yield "kept of the known / rejected of the unknown, in percent, mean over seeds\n"
    groups = {(f"{name} {ood}", order): g for (name, ood, order), g in grouped(rows, "suite", "set", "order").items()}
    groups |= {(f"{name}, mean", order): group for (name, order), group in grouped(rows, "suite", "order").items()}
    lines = ((*key, *(both(group, column) for column in COLUMNS)) for key, group in groups.items())
    yield from markdown_table(("set", "order", *COLUMNS.values()), lines)
    yield "\nrealised recall against the wanted one, by suite; streams of one kind included where they apply"
    for (name,), group in grouped(rows, "suite").items():
        for wanted in WANTED:
            yield f"{name}: wanted {wanted} %: {off(group, wanted)}"


def both(rows: list[Row], column: str) -> str:
    return f"{mean(rows, f'{column}_kept'):.1f} / {mean(rows, f'{column}_rejected'):.1f}".replace("nan", "-")


def off(rows: list[Row], wanted: int) -> str:
    kept = [row[f"at{wanted}_kept"] - wanted for row in rows if row[f"at{wanted}_kept"] is not None]
    if not kept:
        return "no known images"
    below, above = sum(value < -TOLERANCE for value in kept), sum(value > TOLERANCE for value in kept)
    return (
        f"off by {min(kept):+.1f} to {max(kept):+.1f}, {statistics.fmean(kept):+.1f} on average of {len(kept)}; "
        f"{below} more than {TOLERANCE:g} points under, {above} over"
    )


if __name__ == "__main__":
    main()
