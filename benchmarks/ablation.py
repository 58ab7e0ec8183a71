"""What each part of the recommended detector contributes: the same streams with one part taken away or changed.

    python benchmarks/ablation.py FOLDER --seeds 3 --rows rows.jsonl
    python benchmarks/ablation.py FOLDER --variants pooled "no guard" --suites imagenet200 --most 700

AUROC and FPR95 (ID is the positive class) are in percent; in brackets the largest loss of a set against `pooled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pooled import ORDERS, Load, percent, ranked, streams, suites_parser
from unseen import LabelSpace
from unseen.bench import Case, Row, command, grouped, markdown_table, mean
from unseen.bench.command import Arguments
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.detector import Pooled
from unseen.detectors.pooled.evidence import TERMS
from unseen.detectors.pooled.weights import PoolWeights, PredictionRecord, pool_weights
from unseen.evaluate import evaluate

METRICS = ("margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id", "accuracy")


class AlwaysTrusted(PooledEvidence):
    """The pool has its weight from the start, whether it predicts evidence or not."""

    def _weights(self, record: PredictionRecord, seen: Tensor) -> PoolWeights:
        level = super()._weights(record, seen).level
        return PoolWeights(level, torch.ones_like(level), torch.full_like(level, self.pool_weight))


class OneGroup(PooledEvidence):
    """Predictions that fall into two groups give the pool no more weight."""

    def _weights(self, record: PredictionRecord, seen: Tensor) -> PoolWeights:
        return super()._weights(record, seen)._replace(pool=self.pool_weight * seen / (seen + self.prior_samples))


class AnyBimodality(PooledEvidence):
    """The pool is trusted as much where its predictions are less bimodal than the evidence itself."""

    def _weights(self, record: PredictionRecord, seen: Tensor) -> PoolWeights:
        settings = {"prior": self.prior_samples, "least": self.pool_weight, "half_explained": self.half_explained}
        return pool_weights(record, seen, **settings, kept=lambda own, _: torch.ones_like(own))


class NoLevel(PooledEvidence):
    """A score is drawn to the prediction only, not to the level of the stream."""

    def _combined(self, own: Tensor, base: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:
        trust = pooled.weights.trust / (1 + pooled.leverage)
        return own + pooled.guard * pooled.weights.pool * trust * (pooled.predicted - own), base


def variant(name: str, **changed: object) -> type[PooledEvidence]:
    """Return the detector with class attributes changed."""
    return type(name, (PooledEvidence,), changed)


class LoosePrior(PooledEvidence):
    """The prior of the regression counts for an eighth of the samples."""

    factor = 1 / 8

    @property
    def prior_samples(self) -> float:
        return self.factor * super().prior_samples


class TightPrior(LoosePrior):
    """The prior of the regression counts for four times the samples."""

    factor = 4.0


VARIANTS: dict[str, Callable[[LabelSpace], PooledEvidence]] = {
    "pooled": PooledEvidence,
    "pool weight 0: frozen evidence": functools.partial(PooledEvidence, pool_weight=0.0),
    "gap shrinkage 0: text as it is": variant("NoShrinkage", gap_shrinkage=0.0),
    "gap shrinkage 1: text centred": variant("WholeShrinkage", gap_shrinkage=1.0),
    **{
        f"evidence without {type(term).__name__}": variant("Without", terms=tuple(t for t in TERMS if t is not term))
        for term in TERMS
    },
    "pool always trusted, half": AlwaysTrusted,
    "two groups add no weight": OneGroup,
    "any bimodality": AnyBimodality,
    "no level": NoLevel,
    "no guard": functools.partial(PooledEvidence, leverage_limit=1e6),
    "prior / 8": LoosePrior,
    "prior x 4": TightPrior,
    "popularity discount 0: plain names": functools.partial(PooledEvidence, popularity_discount=0.0),
}


def main() -> None:
    parser = suites_parser(__doc__, seeds=3)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments = command.parse(parser)
    command.answer(cases(arguments), arguments, table)


def cases(arguments: Arguments) -> Iterator[Case]:
    for name, ood, load in streams(arguments):
        for seed in command.seeds(arguments):
            for variant in arguments.variants:
                key = {"part": "ablation", "suite": name, "set": ood, "seed": seed, "variant": variant}
                yield Case(key, functools.partial(measure, load, ood, seed, variant))


def measure(load: Load, ood: str, seed: int, variant: str) -> Row:
    """Return the metrics of every order, and AUROC of score() after an ID-only half."""
    detector, pool, row = VARIANTS[variant](load().labels), load().against(ood), {}
    for order in ORDERS:
        metrics = evaluate(detector, pool.ordered(order, seed)).metrics
        row |= {f"{name}_{order}": value for name, value in percent(metrics, METRICS).items()}
    trial = pool.ordered("shuffled", seed)
    known, unknown = trial.is_id.nonzero().squeeze(1), (~trial.is_id).nonzero().squeeze(1)
    half = len(known) // 2
    _, state = detector.observe(detector.start(), trial.z[known[:half]])
    row["after_id"] = ranked(detector, state, trial, [known[half:], unknown[len(unknown) // 2 :]])
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
    """Return the largest loss of a set against `pooled`, in brackets."""
    paired = ({**row, "change": row[name] - base[row["suite"], row["set"], row["seed"]][name]} for row in rows if base)
    changes = {" ".join(key): mean(group, "change") for key, group in grouped(paired, "suite", "set").items()}
    if not any(changes.values()):
        return ""
    worst = (max if "fpr" in name else min)(changes, key=changes.__getitem__)
    return f" ({changes[worst]:+.1f} {worst})"


if __name__ == "__main__":
    main()
