"""One run: a stream through a detector, checked for causality, judged, and written down as a row and its scores."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import unseen
from unseen.bench.grid import ANY, BOUND, Run
from unseen.bench.rows import Row
from unseen.checks import check_causal
from unseen.detectors import Detector, Online
from unseen.detectors.posthoc import PostHoc, fitted
from unseen.errors import SettingError
from unseen.evaluate import Report, evaluate, evaluate_many, oracle, over_time
from unseen.suites import Suite
from unseen.trial import Trial

CPU = "cpu"
CHECKED = 96  # samples of every stream whose second half is replaced to see whether the first half minds
POINTS = 20  # of the curves over a stream
CORE = ("detectors", "scan", "gate.py", "text.py", "odds.py", "arrival.py", "metrics.py", "evaluate.py", "trial.py")


class Outcome(NamedTuple):
    """A row for the table and the score of every sample, in the suite's own order; nan for one that never arrived."""

    row: Row
    scores: Float[Tensor, " n"]


def execute(suite: Suite, run: Run, *, device: str = CPU) -> Outcome:
    """Return what ran, on what, and every metric."""
    pool, detector = prepared(suite, run, device)
    order = arrival(pool, run)
    trial = pool[order]
    assert_causal(detector, trial, run)
    report = (
        oracle(detector, trial) if run.kind == BOUND and isinstance(detector, Online) else evaluate(detector, trial)
    )
    return written(suite, run, pool, order, report, device=device)


def execute_many(suite: Suite, runs: Sequence[Run], *, device: str) -> list[Outcome]:
    """Return the outcomes of runs that differ in nothing but who arrives when, from one call of the detector."""
    pool, detector = prepared(suite, runs[0], device)
    orders = [arrival(pool, run) for run in runs]
    for run, order in zip(runs, orders, strict=True):
        assert_causal(detector, pool[order[:CHECKED]], run)
    reports = evaluate_many(detector, pool, orders)
    return [
        written(suite, run, pool, order, report, device=device)
        for run, order, report in zip(runs, orders, reports, strict=True)
    ]


def written(suite: Suite, run: Run, pool: Trial, order: Int[Tensor, " T"], report: Report, *, device: str) -> Outcome:
    """Return a report as a row, and its scores in the suite's own order."""
    trial = report.trial
    row = {
        **identity(suite, run, device=device),
        "samples": len(trial.z),
        "known": int(trial.is_id.sum()),
        "unknown": _sizes(pool),
        "by_set": {name: _plain(metrics) for name, metrics in report.by_source.items()},
        **_plain(report.metrics),
        "over_time": [_plain(part) for part in over_time(report, points=POINTS)] if run.order != ANY else [],
        **report.cost._asdict(),
        "torch": torch.__version__,
    }
    scores = torch.full((len(pool.z),), math.nan)
    scores[order] = report.reading.score.float()
    return Outcome(row, scores)


def identity(suite: Suite, run: Run, *, device: str = CPU) -> Row:
    """Return what makes a row this row and no other: rows that agree on it need not be computed again."""
    return {
        "suite": suite.name,
        "sets": list(run.sets),
        "order": run.order,
        "seed": run.seed,
        "detector": run.detector,
        "kind": run.kind,
        "settings": {name: str(getattr(v, "__name__", v)) if callable(v) else v for name, v in _settings(suite, run)},
        "varied": [name for name, _ in run.settings],
        "labels": suite.labels.fingerprint,
        "data": suite.fingerprint,
        "version": f"{unseen.__version__}+{code()}",
        **({} if device == CPU else {"device": device}),  # which rounds otherwise
    }


def prepared(suite: Suite, run: Run, device: str = CPU) -> tuple[Trial, Detector[Any]]:
    """Return the samples of a run and its detector, fitted on known images that are then left out if it needs them."""
    detector, trial = run.build(suite.labels.to(device=device)), suite.against(*run.sets)
    if not isinstance(detector, PostHoc):
        return trial, detector
    held_out, rest = trial.held_out()
    return rest, fitted(detector, held_out.z.to(device), held_out.label.to(device))


def arrival(pool: Trial, run: Run) -> Tensor:
    """Return who arrives when."""
    if run.order == ANY:
        return torch.arange(len(pool.z))
    options: Mapping[str, object] = {}
    if run.order == "temporal":
        options = {"sets": [pool.sources.index(name) for name in run.sets]}
    return pool.arrival(run.order, run.seed, **options)


def assert_causal(detector: Detector[Any], trial: Trial, run: Run) -> None:
    """Refuse a detector whose early scores change with the later samples of this very stream."""
    try:
        check_causal(detector, trial.z[:CHECKED].to(detector.labels.id_anchors.device))
    except AssertionError as error:
        raise SettingError(
            f"expected a causal detector, got {run.detector} whose earlier scores follow later samples ({error}); "
            "a benchmark of streams cannot rank it"
        ) from error


@cache
def code() -> str:
    """Return a hash of the modules that make the numbers: rows of other code are computed again."""
    digest = hashlib.sha256()
    for name in CORE:
        part = files("unseen") / name
        for file in sorted(part.iterdir(), key=lambda file: file.name) if part.is_dir() else [part]:
            if file.name.endswith(".py"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def _sizes(pool: Trial) -> dict[str, int]:
    """Return the unknown sets as they lie in the pool, with their lengths."""
    sources, counts = pool.source[~pool.is_id].unique(return_counts=True)
    return {pool.sources[source]: count for source, count in zip(sources.tolist(), counts.tolist(), strict=True)}


def _settings(suite: Suite, run: Run) -> list[tuple[str, Any]]:
    return list(run.build(suite.labels).settings.items())


def _plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in metrics.items()}  # JSON has no nan
