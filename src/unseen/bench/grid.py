"""Run a suite: every unknown set, order, seed and detector, one row each, resumed where it stopped."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unseen import detectors
from unseen.detectors import Online
from unseen.errors import SettingError
from unseen.evaluate import evaluate, oracle
from unseen.suites import Suite

ORACLE = "oracle-online"  # routes by the truth: an upper bound, in a table of its own
DETECTORS = ("mcm", "neglabel", "online", ORACLE)

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One cell of the grid."""

    unknown: str
    order: str
    seed: int
    detector: str

    @property
    def label_free(self) -> bool:
        """Say whether the run sees nothing but features."""
        return self.detector != ORACLE


def grid(suite: Suite, *, chosen: Sequence[str], orders: Sequence[str], seeds: int) -> list[Run]:
    """Return every run of a suite, refusing detectors nobody registered before anything is computed."""
    unknown = [name for name in chosen if name not in detectors.REGISTRY and name != ORACLE]
    if unknown:
        known = ", ".join([*sorted(detectors.REGISTRY), ORACLE])
        raise SettingError(f"expected detectors out of {known}, got {unknown}; check the spelling")
    return [
        Run(ood, order, seed, name)
        for ood in suite.sets
        for order in orders
        for seed in range(seeds)
        for name in chosen
    ]


def execute(suite: Suite, run: Run, *, version: str) -> Row:
    """Return one row: what ran, on what, and every metric."""
    trial = suite.against(run.unknown).ordered(run.order, run.seed)
    if run.label_free:
        detector = detectors.make(run.detector, suite.labels)
        report = evaluate(detector, trial)
    else:
        detector = Online(suite.labels)
        report = oracle(detector, trial)
    return {
        **identity(suite, run, version=version),
        "settings": detector.settings,
        "samples": len(trial.z),
        "torch": torch.__version__,
        **{name: None if math.isnan(value) else value for name, value in report.metrics.items()},  # JSON has no nan
    }


def identity(suite: Suite, run: Run, *, version: str) -> Row:
    """Return what makes a row this row and no other: rows that agree on it need not be computed again."""
    return {
        "suite": suite.name,
        "set": run.unknown,
        "order": run.order,
        "seed": run.seed,
        "detector": run.detector,
        "label_free": run.label_free,
        "labels": suite.labels.fingerprint,
        "version": version,
    }


def resumed(suite: Suite, runs: Iterable[Run], path: Path | None, *, version: str) -> Iterator[Row]:
    """Yield one row per run; rows already in the JSON-lines file are read, new ones are appended as they come."""
    done = {_key(row): row for row in read(path)} if path and path.exists() else {}
    for run in runs:
        key = _key(identity(suite, run, version=version))
        if key not in done:
            done[key] = execute(suite, run, version=version)
            if path:
                append(path, done[key])
        yield done[key]


def summarised(rows: Iterable[Row], *, metrics: Sequence[str]) -> list[Row]:
    """Return mean and standard deviation over seeds of each (set, order, detector)."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["suite"], row["set"], row["order"], row["detector"], row["label_free"]].append(row)
    return [
        {
            **dict(zip(("suite", "set", "order", "detector", "label_free"), key, strict=True)),
            "seeds": len(group),
            **{name: mean_and_deviation([row[name] for row in group]) for name in metrics},
        }
        for key, group in groups.items()
    ]


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (0 for one value); nan if a value is undefined."""
    numbers = [math.nan if value is None else value for value in values]
    mean = math.fsum(numbers) / len(numbers)
    spread = math.fsum((number - mean) ** 2 for number in numbers)
    return mean, math.sqrt(spread / max(1, len(numbers) - 1))


def read(path: Path) -> list[Row]:
    """Return the rows of a JSON-lines file; half a line, which a kill in the middle of a write leaves, is no row."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append(path: Path, row: Row) -> None:
    """Add one row as one line, on a line of its own even after half a line."""
    with path.open("a+b") as file:
        torn = file.seek(0, os.SEEK_END) > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        file.write(("\n" if torn else "").encode() + json.dumps(row, allow_nan=False).encode() + b"\n")


def _key(row: Mapping[str, Any]) -> str:
    names = ("suite", "set", "order", "seed", "detector", "labels", "version")
    return json.dumps([row.get(name) for name in names])
