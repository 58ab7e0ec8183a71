"""What each part of the recommended detector is worth, on suites of stored features.

    python benchmarks/ablation.py FOLDER --seeds 3 --suites imagenet200 tin-near-0 --most 700

AUROC and FPR95 (ID is the positive class) are in percent; in brackets the largest loss of a set against `pooled`.
`benchmarks/families.py` asks the same of names of one kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from stored_suites import ORDERS, Load, streams, suites_parser
from unseen import LabelSpace
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled import PooledState, detector
from unseen.detectors.pooled.names import NameLogits, NearestNames
from unseen.detectors.pooled.sides import Likelihood
from unseen.detectors.pooled.state import SampleBlock, SampleRows
from unseen_bench.evaluate import evaluate
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments

METRICS = ("margin_auroc", "margin_fpr95_id", "accuracy")


class WithoutNames(PooledEvidence):
    """Image space adds nothing to the logits of names."""

    def _name_logits(self, state: PooledState, z: Tensor, nearest: NearestNames) -> tuple[NameLogits, NameLogits]:
        known, negative = super()._name_logits(state, z, nearest)
        return NameLogits(*map(torch.zeros_like, known)), NameLogits(*map(torch.zeros_like, negative))


class UnlearnedNames(PooledEvidence):
    """Names stay where they start in image space, whatever images they claim."""

    def _name_logits(self, state: PooledState, z: Tensor, nearest: NearestNames) -> tuple[NameLogits, NameLogits]:
        known, negative = super()._name_logits(state, z, nearest)
        return known._replace(learned=known.start), negative._replace(learned=negative.start)


class WithoutPool(PooledEvidence):
    """What images that look alike have shown adds nothing."""

    def _judge(self, state: PooledState, block: SampleBlock) -> tuple[DetectorOutput, SampleRows]:
        silent = Likelihood.none(state.sums.votes.device)
        return super()._judge(state._replace(fitted=state.fitted._replace(likelihood=silent)), block)


class Unbounded(PooledEvidence):
    """Image space raises a score as much as it lowers one."""

    def _judge(self, state: PooledState, block: SampleBlock) -> tuple[DetectorOutput, SampleRows]:
        with patch.object(detector, "raised", lambda ratio: ratio):
            return super()._judge(state, block)


class FrozenEvidence(WithoutNames, WithoutPool):
    """Only the frozen text speaks."""


def frozen_evidence(labels: LabelSpace) -> PooledEvidence:
    """NegLabel in one group."""
    return FrozenEvidence(labels, popularity=0.0, naming_popularity=0.0)


VARIANTS: dict[str, Callable[[LabelSpace], PooledEvidence]] = {
    "pooled": PooledEvidence,
    "frozen log-odds": frozen_evidence,
    "without names in image space": WithoutNames,
    "names stay where they start": UnlearnedNames,
    "without the pool": WithoutPool,
    "image space unbounded": Unbounded,
    "popularity 0 in the margin": functools.partial(PooledEvidence, popularity=0.0),
    "popularity 0 in naming": functools.partial(PooledEvidence, naming_popularity=0.0),
}


def main() -> None:
    parser = suites_parser(__doc__, seeds=3)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: Arguments) -> Iterator[Case]:
    for name, ood, load in streams(arguments):
        for seed in command.seeds(arguments):
            for variant in arguments.variants:
                key = {"part": "ablation", "suite": name, "set": ood, "seed": seed, "variant": variant}
                yield Case(key, functools.partial(measure, load, ood, seed, variant))


def measure(load: Load, ood: str, seed: int, variant: str) -> Row:
    """The metrics of every order."""
    judge, pool, row = VARIANTS[variant](load().labels), load().against(ood), {}
    for order in ORDERS:
        metrics = evaluate(judge, pool.ordered(order, seed)).metrics
        row |= {f"{name}_{order}": 100 * metrics[name] for name in METRICS}
    return row


def table(rows: list[Row]) -> Iterator[str]:
    columns = {
        "shuffled": "margin_auroc_shuffled",
        "FPR95 shuffled": "margin_fpr95_id_shuffled",
        "ID first": "margin_auroc_id_first",
        "OOD first": "margin_auroc_ood_first",
    }
    base = {(r["suite"], r["set"], r["seed"]): r for r in rows if r["variant"] == "pooled"}
    lines = []
    for (variant,), group in grouped(rows, "variant").items():
        notes = (f"{mean(group, name):.1f}{worst_set(group, base, name)}" for name in columns.values())
        lines.append((variant, *notes, f"{mean(group, 'accuracy_shuffled'):.1f}"))
    return markdown_table(("variant", *columns, "ID accuracy"), lines)


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
