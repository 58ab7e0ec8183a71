"""What each part of the recommended detector contributes: the same streams with one part taken away or changed.

    python benchmarks/ablation.py FOLDER --seeds 3 --rows rows.jsonl
    python benchmarks/ablation.py FOLDER --variants pooled "without the pool" --suites imagenet200 --most 700

AUROC and FPR95 (ID is the positive class) are in percent; in brackets the largest loss of a set against `pooled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from unseen.detectors.pooled.evidence import LabelStatistics

from stored_suites import ORDERS, Load, streams, suites_parser
from unseen import LabelSpace
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled import TERMS, PooledState
from unseen.detectors.pooled.names import NameLogits, NearestNames
from unseen.detectors.pooled.sides import Likelihood
from unseen.detectors.pooled.state import SampleBlock, SampleRows
from unseen_bench.evaluate import evaluate
from unseen_bench.metrics import auroc
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments

METRICS = ("margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id", "accuracy")


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


class NoShrinkage(PooledEvidence):
    """The gap between known and negative names stays in the log-odds."""

    share = 0.0

    @functools.cached_property
    def label_statistics(self) -> LabelStatistics:
        return super().label_statistics._replace(gap_shrinkage=self.share)


class WholeShrinkage(NoShrinkage):
    """The whole gap is taken out of the log-odds."""

    share = 1.0


class FrozenEvidence(WithoutNames, WithoutPool):
    """Only the frozen text speaks; build it with `popularity=0.0`."""


def variant(name: str, **changed: object) -> type[PooledEvidence]:
    """The detector with class attributes changed."""
    return type(name, (PooledEvidence,), changed)


def frozen_evidence(labels: LabelSpace) -> PooledEvidence:
    """The detector that only the frozen text speaks in."""
    return FrozenEvidence(labels, popularity=0.0, naming_popularity=0.0)


VARIANTS: dict[str, Callable[[LabelSpace], PooledEvidence]] = {
    "pooled": PooledEvidence,
    "frozen evidence": frozen_evidence,
    "without names in image space": WithoutNames,
    "names stay where they start": UnlearnedNames,
    "without the pool": WithoutPool,
    "popularity 0 in the margin": functools.partial(PooledEvidence, popularity=0.0),
    "popularity 0 in naming": functools.partial(PooledEvidence, naming_popularity=0.0),
    "gap shrinkage 0: text as it is": NoShrinkage,
    "gap shrinkage 1: text centred": WholeShrinkage,
    **{
        f"evidence without {type(term).__name__}": variant("Without", terms=tuple(t for t in TERMS if t is not term))
        for term in TERMS
    },
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
    """The metrics of every order, and AUROC of score() after an ID-only half."""
    detector, pool, row = VARIANTS[variant](load().labels), load().against(ood), {}
    for order in ORDERS:
        metrics = evaluate(detector, pool.ordered(order, seed)).metrics
        row |= {f"{name}_{order}": 100 * metrics[name] for name in METRICS}
    trial = pool.ordered("shuffled", seed)
    known, unknown = trial.is_id.nonzero().squeeze(1), (~trial.is_id).nonzero().squeeze(1)
    half = len(known) // 2
    _, state = detector.observe(detector.start(), trial.z[known[:half]])
    held_out = (known[half:], unknown[len(unknown) // 2 :])
    row["after_id"] = 100 * auroc(*(detector.score(state, trial.z[rows]).score for rows in held_out))
    return row


def table(rows: list[Row]) -> Iterator[str]:
    columns = {
        "shuffled": "auroc_shuffled",
        "FPR95 shuffled": "fpr95_id_shuffled",
        "ID first": "auroc_id_first",
        "OOD first": "auroc_ood_first",
        "score() after ID only": "after_id",
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
