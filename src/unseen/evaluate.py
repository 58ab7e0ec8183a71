"""Where truth and scores meet, and the only place where they do."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unseen import checkpoint
from unseen.detectors import Detector, Online, Reading
from unseen.detectors.base import BLOCK, unit
from unseen.gate import read_text
from unseen.metrics import summary
from unseen.trial import Trial


class Cost(NamedTuple):
    """What a stream took."""

    seconds: float
    state_bytes: int  # after the last sample; the label space, which every method has, is not counted


@dataclass(frozen=True)
class Report:
    """What one detector did on one trial."""

    detector: str
    metrics: dict[str, float]
    by_source: dict[str, dict[str, float]]  # each OOD set against all ID samples
    reading: Reading
    trial: Trial
    cost: Cost


def evaluate(detector: Detector[Any], trial: Trial) -> Report:
    """Stream a trial through a detector, features only, then judge its scores by the truth."""
    started = perf_counter()
    reading, state = detector.observe(detector.start(), trial.z)
    return judged(detector, reading, trial, cost=_cost(started, state))


def oracle(detector: Online, trial: Trial) -> Report:
    """Run Algorithm 1 with routes taken from the truth: an upper bound for study, never a result of a detector."""
    started, state, readings = perf_counter(), detector.start(), []
    z = unit(trial.z, like=detector.labels.id_anchors)
    for block, is_id in zip(z.split(BLOCK), trial.is_id.split(BLOCK), strict=True):
        trust = torch.where(is_id, torch.inf, -torch.inf)
        reading, state = detector.taught(state, block, read_text(detector.labels, block, tau=detector.tau), trust)
        readings.append(reading)
    name = f"oracle-{detector.name}"
    return judged(detector, Reading.joined(readings), trial, name=name, cost=_cost(started, state))


NOTHING = Cost(0.0, 0)


def judged(
    detector: Detector[Any], reading: Reading, trial: Trial, *, name: str | None = None, cost: Cost = NOTHING
) -> Report:
    """Return every metric of scores that were made without the truth."""
    is_id = trial.is_id
    frozen = (unit(trial.z[is_id], like=detector.labels.id_anchors) @ detector.labels.id_anchors.T).argmax(1)
    metrics = {
        **summary(reading.score[is_id], reading.score[~is_id]),
        "accuracy": _share(reading.label[is_id] == trial.label[is_id]),
        "accuracy_frozen": _share(frozen == trial.label[is_id]),
        **gate(reading, is_id),
    }
    ood = trial.source[~is_id].unique().tolist()
    by_source = {
        trial.sources[s]: summary(reading.score[is_id], reading.score[~is_id & (trial.source == s)]) for s in ood
    }
    return Report(name or detector.name, metrics, by_source, reading, trial, cost)


def gate(reading: Reading, is_id: Bool[Tensor, " T"]) -> dict[str, float]:
    """Return how much of the stream taught each side, and how much of that was rightly routed."""
    known, unknown = reading.route > 0, reading.route < 0
    return {
        "coverage_known": _share(known),
        "coverage_unknown": _share(unknown),
        "purity_known": _share(is_id[known]),
        "purity_unknown": _share(~is_id[unknown]),
    }


def over_time(report: Report, *, points: int = 20) -> list[dict[str, float]]:
    """Return the metrics of consecutive slices of the stream: does it get better with use?"""
    slices = torch.arange(len(report.trial.z)).chunk(points)
    return [{"samples": float(part[-1] + 1), **_slice(report, part)} for part in slices]


def _slice(report: Report, part: Int[Tensor, " n"]) -> dict[str, float]:
    is_id, reading = report.trial.is_id[part], Reading(*(column[part] for column in report.reading))
    scores = summary(reading.score[is_id], reading.score[~is_id])
    return {"auroc": scores["auroc"], "fpr95_id": scores["fpr95_id"], **gate(reading, is_id)}


def _cost(started: float, state: Any) -> Cost:
    seconds, parts = perf_counter() - started, checkpoint.flat(state).values()
    return Cost(seconds, sum(part.element_size() * part.nelement() for part in parts))


def _share(claims: Bool[Tensor, " n"]) -> float:
    return float(claims.double().mean())  # nan for nothing: no claim was made
