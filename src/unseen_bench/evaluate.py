"""Verdicts, margins and scores compared with the truth: the only module that sees both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unseen import checkpoint
from unseen.detectors import Detector, DetectorOutput
from unseen.detectors.base import unit
from unseen.session import Session
from unseen.threshold import Fixed, RecallInterval
from unseen.verdicts import Verdicts
from unseen_bench.metrics import (
    balanced_at_recall,
    best_balanced,
    calibration_error,
    reliability,
    summary,
)
from unseen_bench.trial import Trial


class Cost(NamedTuple):
    """What a stream took."""

    seconds: float
    state_bytes: int  # after the last sample; the label space, which every method has, is not counted

    @classmethod
    def of(cls, seconds: float, state: Any) -> Cost:
        """The cost of a stream that ended with this state."""
        parts = checkpoint.flat(state).values()
        return cls(seconds, sum(part.element_size() * part.nelement() for part in parts))


@dataclass(frozen=True)
class Evaluation:
    """What one detector and its threshold rule did on one trial."""

    detector: str
    metrics: dict[str, float]
    by_source: dict[str, dict[str, float]]  # each OOD set against the ID samples of its stage
    verdicts: Verdicts
    trial: Trial
    cost: Cost
    recall_interval: RecallInterval | None  # what the rule says at the end that it keeps of the known images

    @property
    def output(self) -> DetectorOutput:
        """What the detector returned."""
        return self.verdicts.output


SessionOrDetector = Session | Detector[Any]  # a detector alone gets the rule that a session gives it


def evaluate(judged: SessionOrDetector, trial: Trial) -> Evaluation:
    """Stream a trial through a session, features only, then judge its verdicts by the truth.

    The session goes on from its snapshot and is not changed. The detector runs where its label space is; the truth
    stays on the host. The cost is that of the detector.
    """
    return evaluate_many(judged, trial, [torch.arange(len(trial.z))])[0]


def ranked(detector: Detector[Any]) -> Session:
    """A session for what is ranked alone: its threshold never moves, which an adaptive one would take as long to do as
    some methods take to score.
    """
    return Session(detector, Fixed())


def evaluate_many(judged: SessionOrDetector, pool: Trial, orders: Sequence[Int[Tensor, " T"]]) -> list[Evaluation]:
    """Stream orders of a pool through sessions alike, all at once where the detector can; judge each by the truth.

    Parts end where what was told is looked at.
    """
    sessions, trials = [_session(judged) for _ in orders], [pool[order] for order in orders]
    detector = sessions[0].detector
    z = _to_device_of(detector, pool.z)
    places = [order.to(z.device) for order in orders]
    verdicts: list[list[Verdicts]] = [[] for _ in sessions]
    seconds, start, length = 0.0, 0, max(len(order) for order in orders)
    while start < length or not all(verdicts):
        rows = slice(start, start + min(session.until_look for session in sessions))
        started = perf_counter()
        states = [session.snapshot.detector for session in sessions]
        observed = detector.observe_many(states, z, [order[rows] for order in places])
        outputs = [output.cpu() for output, _ in observed]
        seconds += (perf_counter() - started) / len(sessions)
        for parts, session, output, (_, state) in zip(verdicts, sessions, outputs, observed, strict=True):
            parts.append(session.learn(output, state))
        start = rows.stop
    return [
        judge_verdicts(session, Verdicts.joined(parts), trial, cost=Cost.of(seconds, session.snapshot.detector))
        for session, parts, trial in zip(sessions, verdicts, trials, strict=True)
    ]


OVER_TIME = ("margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id")
EARLY = 200  # images whose verdicts are judged apart: the start of a stream
NO_COST = Cost(seconds=0.0, state_bytes=0)


def judge(
    judged: SessionOrDetector, output: DetectorOutput, trial: Trial, *, name: str | None = None, cost: Cost = NO_COST
) -> Evaluation:
    """Every metric of scores that were made without the truth, and of the verdicts that follow from them."""
    session = _session(judged)
    verdicts = session.learn(output, session.snapshot.detector)
    return judge_verdicts(session, verdicts, trial, name=name, cost=cost)


def judge_verdicts(
    session: Session, verdicts: Verdicts, trial: Trial, *, name: str | None = None, cost: Cost = NO_COST
) -> Evaluation:
    """Every metric of verdicts that were made without the truth, by a session that has made them."""
    output, is_id, detector = verdicts.output, trial.is_id, session.detector
    z, anchors = (trial.z[is_id, 0] if detector.parts else trial.z[is_id]), detector.labels.id_anchors
    frozen = (unit(_to_device_of(detector, z), like=anchors) @ anchors.T).argmax(1).cpu()
    metrics = {
        **ranking(output, is_id),
        **verdict_metrics(verdicts, is_id, ~is_id),
        **early_metrics(verdicts, is_id),
        "accuracy": _fraction(output.label[is_id] == trial.label[is_id]),
        "accuracy_frozen": _fraction(frozen == trial.label[is_id]),
        **gate_metrics(output, is_id),
    }
    by_source = {}
    for source in trial.source[~is_id].unique().tolist():
        known, unknown = sides(trial, source)
        found = ranking(output, known, unknown) | verdict_metrics(verdicts, known, unknown)
        by_source[trial.sources[source]] = found
    return Evaluation(name or detector.name, metrics, by_source, verdicts, trial, cost, session.recall_interval)


def sides(trial: Trial, source: int) -> tuple[Bool[Tensor, " T"], Bool[Tensor, " T"]]:
    """The unknown samples of one set and the known ones they are compared with: those of the same stage."""
    unknown = ~trial.is_id & (trial.source == source)
    return trial.is_id & torch.isin(trial.stage, trial.stage[unknown]), unknown


def ranking(
    output: DetectorOutput, known: Bool[Tensor, " T"], unknown: Bool[Tensor, " T"] | None = None
) -> dict[str, float]:
    """How well the margin (`margin_auroc`, ...) and the raw score (`auroc`, ...) rank known above unknown.

    The margin is score less baseline: what a verdict carries. `unknown` is every sample that is not known if not given.
    """
    unknown = ~known if unknown is None else unknown
    margin = output.margin
    by_margin = summary(margin[known], margin[unknown])
    return {f"margin_{name}": value for name, value in by_margin.items()} | summary(
        output.score[known], output.score[unknown]
    )


def verdict_metrics(verdicts: Verdicts, known: Bool[Tensor, " T"], unknown: Bool[Tensor, " T"]) -> dict[str, float]:
    """How the verdicts on known and unknown samples agree with the truth.

    `kept` and `rejected` are the shares judged rightly, `balanced` is their mean. `best_threshold` is the balanced
    accuracy of the best single threshold on these margins, `balanced_at_95` that of the threshold that truly keeps
    95 % of the known; `ece` is the expected calibration error of the p_known.
    """
    margin, judged = verdicts.margin, known | unknown
    kept, rejected = _fraction(~verdicts.unknown[known]), _fraction(verdicts.unknown[unknown])
    return {
        "kept": kept,
        "rejected": rejected,
        "balanced": (kept + rejected) / 2,
        "best_threshold": best_balanced(margin[known], margin[unknown]),
        "balanced_at_95": balanced_at_recall(margin[known], margin[unknown]),
        "ece": calibration_error(reliability(verdicts.p_known[judged], known[judged])),
    }


def early_metrics(verdicts: Verdicts, is_id: Bool[Tensor, " T"]) -> dict[str, float]:
    """What was kept and rejected among the first EARLY samples."""
    known, is_id = ~verdicts.unknown[:EARLY], is_id[:EARLY]
    kept, rejected = _fraction(known[is_id]), _fraction(~known[~is_id])
    return {f"kept_first_{EARLY}": kept, f"rejected_first_{EARLY}": rejected}


def gate_metrics(output: DetectorOutput, is_id: Bool[Tensor, " T"]) -> dict[str, float]:
    """What share of the stream taught each side, and what share of that was routed rightly."""
    known, unknown = output.route > 0, output.route < 0
    return {
        "coverage_known": _fraction(known),
        "coverage_unknown": _fraction(unknown),
        "purity_known": _fraction(is_id[known]),
        "purity_unknown": _fraction(~is_id[unknown]),
    }


def over_time(evaluation: Evaluation, *, points: int = 20) -> list[dict[str, float]]:
    """The metrics of consecutive slices of the stream."""
    found = []
    for part in torch.arange(len(evaluation.trial.z)).chunk(points):
        is_id, verdicts = evaluation.trial.is_id[part], evaluation.verdicts.select(part)
        ranks = ranking(verdicts.output, is_id)
        shares = verdict_metrics(verdicts, is_id, ~is_id) | gate_metrics(verdicts.output, is_id)
        found.append({"samples": float(part[-1] + 1), **{name: ranks[name] for name in OVER_TIME}, **shares})
    return found


def _session(judged: SessionOrDetector) -> Session:
    """A session that may learn: a new one, or one that goes on from a snapshot."""
    return judged.at(judged.snapshot) if isinstance(judged, Session) else Session(judged)


def _to_device_of(detector: Detector[Any], z: Tensor) -> Tensor:
    return z.to(detector.labels.id_anchors.device)


def _fraction(is_so: Bool[Tensor, " n"]) -> float:
    return float(is_so.double().mean())  # nan of no samples
