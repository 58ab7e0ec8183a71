"""Scores compared with the truth: the only module that sees both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unseen import checkpoint
from unseen.detectors import Detector, Online, Reading
from unseen.detectors.base import BLOCK, unit
from unseen.metrics import summary
from unseen.text import text_logits
from unseen.trial import Trial


class Cost(NamedTuple):
    """What a stream took."""

    seconds: float
    state_bytes: int  # after the last sample; the label space, which every method has, is not counted


@dataclass(frozen=True)
class Evaluation:
    """What one detector did on one trial."""

    detector: str
    metrics: dict[str, float]
    by_source: dict[str, dict[str, float]]  # each OOD set against all ID samples
    reading: Reading
    trial: Trial
    cost: Cost


def evaluate(detector: Detector[Any], trial: Trial) -> Evaluation:
    """Stream a trial through a detector, features only, then judge its scores by the truth.

    The detector runs where its label space is; the truth stays on the host.
    """
    started = perf_counter()
    reading, state = detector.observe(detector.start(), _to_device_of(detector, trial.z))
    return judge(detector, reading.cpu(), trial, cost=_cost(started, state))


def evaluate_many(detector: Detector[Any], pool: Trial, orders: Sequence[Int[Tensor, " T"]]) -> list[Evaluation]:
    """Stream orders of one pool through a detector, all at once where it can do that, and judge each by the truth."""
    started = perf_counter()
    observed = detector.observe_many(
        [detector.start()] * len(orders),
        _to_device_of(detector, pool.z),
        [order.to(detector.labels.id_anchors.device) for order in orders],
    )
    readings = [reading.cpu() for reading, _ in observed]
    costs = [_cost(started, state) for _, state in observed]
    return [
        judge(detector, reading, pool[order], cost=cost._replace(seconds=cost.seconds / len(orders)))
        for reading, order, cost in zip(readings, orders, costs, strict=True)
    ]


def oracle(detector: Online, trial: Trial) -> Evaluation:
    """Run Algorithm 1 with routes taken from the truth: an upper bound for study, never a result of a detector."""
    started, state, readings = perf_counter(), detector.start(), []
    z = unit(_to_device_of(detector, trial.z), like=detector.labels.id_anchors)
    for block, is_id in zip(z.split(BLOCK), trial.is_id.to(z.device).split(BLOCK), strict=True):
        trust = torch.where(is_id, torch.inf, -torch.inf)
        text = text_logits(detector.labels, block, tau=detector.tau)
        reading, state = detector.learn_with_trust(state, block, text, trust)
        readings.append(reading)
    name = f"oracle-{detector.name}"
    return judge(detector, Reading.joined(readings).cpu(), trial, name=name, cost=_cost(started, state))


OVER_TIME = ("margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id")
NO_COST = Cost(0.0, 0)


def judge(
    detector: Detector[Any], reading: Reading, trial: Trial, *, name: str | None = None, cost: Cost = NO_COST
) -> Evaluation:
    """Return every metric of scores that were made without the truth."""
    is_id = trial.is_id
    anchors = detector.labels.id_anchors
    frozen = (unit(_to_device_of(detector, trial.z[is_id]), like=anchors) @ anchors.T).argmax(1).cpu()
    metrics = {
        **ranking(reading, is_id),
        "accuracy": _fraction(reading.label[is_id] == trial.label[is_id]),
        "accuracy_frozen": _fraction(frozen == trial.label[is_id]),
        **gate_metrics(reading, is_id),
    }
    ood = trial.source[~is_id].unique().tolist()
    by_source = {trial.sources[s]: ranking(reading, *sides(trial, s)) for s in ood}
    return Evaluation(name or detector.name, metrics, by_source, reading, trial, cost)


def sides(trial: Trial, source: int) -> tuple[Bool[Tensor, " T"], Bool[Tensor, " T"]]:
    """Return the unknown samples of one set and the known ones they are compared with: those of the same stage."""
    unknown = ~trial.is_id & (trial.source == source)
    return trial.is_id & torch.isin(trial.stage, trial.stage[unknown]), unknown


def ranking(reading: Reading, known: Bool[Tensor, " T"], unknown: Bool[Tensor, " T"] | None = None) -> dict[str, float]:
    """Return how well the margin (`margin_auroc`, ...) and the raw score (`auroc`, ...) rank known above unknown.

    The margin is score less baseline: what a verdict carries. `unknown` is every sample that is not known if not given.
    """
    unknown = ~known if unknown is None else unknown
    margin = reading.margin
    by_margin = summary(margin[known], margin[unknown])
    return {f"margin_{name}": value for name, value in by_margin.items()} | summary(
        reading.score[known], reading.score[unknown]
    )


def gate_metrics(reading: Reading, is_id: Bool[Tensor, " T"]) -> dict[str, float]:
    """Return what share of the stream taught each side, and what share of that was routed rightly."""
    known, unknown = reading.route > 0, reading.route < 0
    return {
        "coverage_known": _fraction(known),
        "coverage_unknown": _fraction(unknown),
        "purity_known": _fraction(is_id[known]),
        "purity_unknown": _fraction(~is_id[unknown]),
    }


def over_time(evaluation: Evaluation, *, points: int = 20) -> list[dict[str, float]]:
    """Return the metrics of consecutive slices of the stream."""
    slices = torch.arange(len(evaluation.trial.z)).chunk(points)
    return [{"samples": float(part[-1] + 1), **_slice(evaluation, part)} for part in slices]


def _slice(evaluation: Evaluation, part: Int[Tensor, " n"]) -> dict[str, float]:
    is_id, reading = evaluation.trial.is_id[part], Reading(*(column[part] for column in evaluation.reading))
    ranked = ranking(reading, is_id)
    return {name: ranked[name] for name in OVER_TIME} | gate_metrics(reading, is_id)


def _cost(started: float, state: Any) -> Cost:
    seconds, parts = perf_counter() - started, checkpoint.flat(state).values()
    return Cost(seconds, sum(part.element_size() * part.nelement() for part in parts))


def _to_device_of(detector: Detector[Any], z: Tensor) -> Tensor:
    return z.to(detector.labels.id_anchors.device)


def _fraction(is_so: Bool[Tensor, " n"]) -> float:
    return float(is_so.double().mean())  # nan of no samples
