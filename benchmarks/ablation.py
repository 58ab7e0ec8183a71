"""What each part of the recommended detector contributes: the same streams with one part taken away or changed.

    python benchmarks/ablation.py FOLDER --seeds 3 --rows rows.jsonl
    python benchmarks/ablation.py FOLDER --variants pooled "without the pool" --suites imagenet200 --most 700

Streams are those of suites, and the near unknown images of families.py. AUROC and FPR95 (ID is the positive class) are
of margins, in percent; in brackets the largest loss of a set against `pooled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import families
from stored_suites import ORDERS, SETS, SUITES, load_suite, suites_parser
from unseen import LabelSpace
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.constants import POOLED
from unseen_bench.evaluate import evaluate
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

NEVER = 1 << 60  # samples
VARIANTS: dict[str, dict[str, float]] = {  # settings of the detector, and its numbers
    "pooled": {},
    "frozen text": {"popularity": 0.0, "naming_popularity": 0.0, "name_scale": 0.0, "first_direction": NEVER},
    "without names in image space": {"name_scale": 0.0},
    "names stay where they start": {"least_share": 2.0},
    "without the pool": {"first_direction": NEVER},
    "popularity 0 in the margin": {"popularity": 0.0},
    "popularity 2 in the margin": {"popularity": 2.0},
    "votes of all images count alike": {"sure": float(NEVER)},
    "popularity 0 in naming": {"naming_popularity": 0.0},
    "one unknown image of ten looks known": {"near_share": 0.1},
    "image space raises without bound": {"near_share": 1e-9},
    "boundary between the sides at 0": {"boundary": 0.0},
    "boundary between the sides at 2": {"boundary": 2.0},
}
SETTINGS = ("popularity", "naming_popularity")

Load = Callable[[], tuple[LabelSpace, Trial]]


def main() -> None:
    parser = suites_parser(__doc__, seeds=3, chosen=SETS, most=10**9)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: Arguments) -> Iterator[Case]:
    for seed in command.seeds(arguments):
        for suite, name, load in streams(arguments, seed):
            for variant in arguments.variants:
                key = {"suite": suite, "set": name, "seed": seed, "variant": variant}
                yield Case(key, functools.partial(measure, load, seed, variant))


def streams(arguments: Arguments, seed: int) -> Iterator[tuple[str, str, Load]]:
    """Yield suite, unknown set and what loads names and images: those of suites, and families without far images."""
    for suite in arguments.suites:
        for name in SUITES[suite]:
            yield suite, name, functools.partial(of_suite, suite, name, arguments.folder, arguments.most)
    for negatives in families.NEGATIVES:
        for name in families.FAMILIES:
            yield f"family, {negatives}", name, functools.partial(near, arguments.folder, name, negatives, seed)


def of_suite(suite: str, name: str, folder: Path, most: int) -> tuple[LabelSpace, Trial]:
    loaded = load_suite(suite, folder, most)
    return loaded.labels, loaded.against(name)


def near(folder: Path, name: str, negatives: str, seed: int) -> tuple[LabelSpace, Trial]:
    labels, pool = families.drawn(folder, name, negatives, seed)
    return labels, pool[(pool.source < 2).nonzero().squeeze(1)]


def measure(load: Load, seed: int, variant: str) -> Row:
    """The metrics of every order."""
    changed, row = VARIANTS[variant], Row()
    labels, pool = load()
    with numbers({name: value for name, value in changed.items() if name not in SETTINGS}):
        detector = PooledEvidence(labels, **{name: value for name, value in changed.items() if name in SETTINGS})
        for order in (*ORDERS, "long_tail"):
            metrics = evaluate(detector, pool.ordered(order, seed)).metrics
            row |= {f"{name}_{order}": 100 * metrics[name] for name in ("margin_auroc", "margin_fpr95_id", "accuracy")}
    return row


@contextmanager
def numbers(changed: Mapping[str, float]) -> Iterator[None]:
    """Other numbers of the detector for a while: they stand in one frozen dataclass, read whenever one is used."""
    before = {name: getattr(POOLED, name) for name in changed}
    try:
        for name, value in changed.items():
            object.__setattr__(POOLED, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(POOLED, name, value)


def table(rows: list[Row]) -> Iterator[str]:
    columns = {"shuffled": "margin_auroc_shuffled", "FPR95 shuffled": "margin_fpr95_id_shuffled"}
    columns |= {"ID first": "margin_auroc_id_first", "OOD first": "margin_auroc_ood_first"}
    columns |= {"long tail": "margin_auroc_long_tail"}
    for kind, group in (("suites", False), ("families", True)):
        some = [row for row in rows if row["suite"].startswith("family") == group]
        base = {(r["suite"], r["set"], r["seed"]): r for r in some if r["variant"] == "pooled"}
        lines = []
        for (variant,), found in grouped(some, "variant").items():
            notes = (f"{mean(found, name):.1f}{worst_set(found, base, name)}" for name in columns.values())
            lines.append((variant, *notes, f"{mean(found, 'accuracy_shuffled'):.1f}"))
        if lines:
            yield from markdown_table((kind, *columns, "names"), lines)
            yield ""


def worst_set(rows: list[Row], base: dict[tuple[Any, ...], Row], name: str) -> str:
    """The largest loss of a set against `pooled`, in brackets."""
    paired = ({**row, "change": row[name] - base[row["suite"], row["set"], row["seed"]][name]} for row in rows if base)
    changes = {" ".join(key): mean(group, "change") for key, group in grouped(paired, "suite", "set").items()}
    if not any(changes.values()):
        return ""
    worst = (max if "fpr" in name else min)(changes, key=changes.__getitem__)
    return f" ({changes[worst]:+.1f} {worst})"


if __name__ == "__main__":
    main()
