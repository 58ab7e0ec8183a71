"""The leaderboard: causal, label-free methods in one setting for all sets, and what a new one must pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from unseen.errors import SettingError
from unseen_bench import suites
from unseen_bench.checks import check_detector
from unseen_bench.oracles import ORACLES
from unseen_bench.run.executors import in_float64, run_all
from unseen_bench.run.results import ResultFolder, Row
from unseen_bench.run.runs import LABEL_FREE, Method, Run, default_detectors, list_runs
from unseen_bench.suites import Suite

SUITES = ("imagenet200", "imagenet200-lowres", "tin-near-0", "tin-near-1")
SEEDS = 3
OTHERS = ("reneg", "neglabel groups=1", "energy", "maxlogit")  # reneg takes 0.6 ms a sample, too long for all tables
METHODS = (*(name for name in default_detectors() if name not in ORACLES), *OTHERS)
HEADS = ("method", "average", *SUITES, "worst set", "µs", "state")
RULE = (
    "A method may enter if\n\n"
    "- it gets unit features in arrival order and nothing else,\n"
    "- it scores each sample before the next one arrives,\n"
    "- it reads the names that every line reads,\n"
    "- and it has one setting for all sets.\n\n"
    "`unseen bench --submit my_detector.py:Mine --features DIR` runs every check of `unseen_bench.checks`, then the "
    "suites, each of which tests the rules again on its own streams, and prints the line. The checks test what a "
    "detector does with its input. A person reads the code, to see that it takes the truth from nowhere else."
)


class Standing(NamedTuple):
    """One line: the mean over the sets of each suite, over all suites, the worst set, and what it cost."""

    method: str
    auroc: dict[str, float]
    fpr: dict[str, float]
    worst: tuple[str, float]
    microseconds: float
    state_bytes: int

    @property
    def average(self) -> float:
        """The mean AUROC over suites: what the board is sorted by."""
        return fmean(self.auroc.values())

    def cells(self) -> list[str]:
        """The line as text."""
        pairs = [f"{100 * self.auroc[name]:.1f} / {100 * self.fpr[name]:.1f}" for name in self.auroc]
        worst = f"{100 * self.worst[1]:.1f} ({self.worst[0]})"
        cost = [f"{self.microseconds:,.0f}", f"{self.state_bytes / 1e6:.1f} MB"]
        return [self.method, f"{100 * self.average:.1f}", *pairs, worst, *cost]


def submit(name: str, features: Path, *, out: Path | None = None, workers: int | None = None) -> Standing:
    """The line of a method after every check passed on the label space of every suite."""
    method = Method.parse(name)
    if (kind := Run((), "", 0, name).kind) != LABEL_FREE:
        raise SettingError(
            f"expected a label-free method, got {name}, which is of the kind {kind}; see docs/results.md"
        )
    loaded = [suites.load(suite, features) for suite in SUITES]
    for suite in loaded:
        detector, _ = in_float64(method.build(suite), suite.pool.z[:0])
        try:
            check_detector(detector)
        except AssertionError as error:
            raise SettingError(
                f"expected {name} to pass the checks of a detector, got on {suite.name}: {error}; "
                "run unseen_bench.checks.check_detector on it"
            ) from error
    return next(standings([name], loaded, out=out, workers=workers))


def standings(
    methods: Iterable[str], loaded: Sequence[Suite], *, out: Path | None = None, workers: int | None = None
) -> Iterator[Standing]:
    """Yield the line of each method; rows are read from and kept in `out`."""
    names = list(methods)
    rows = {suite.name: _rows(suite, names, out, workers) for suite in loaded}
    for name in names:
        own = {suite: [row for row in found if row["detector"] == name] for suite, found in rows.items()}
        yield standing(name, own)


def standing(name: str, rows: dict[str, list[Row]]) -> Standing:
    """The line of a method from its rows of each suite, judged by the margin."""
    by_set = {
        (suite, unknown): [row["by_set"][unknown] for row in part if unknown in row["by_set"]]
        for suite, part in rows.items()
        for unknown in {one for row in part for one in row["by_set"]}
    }
    found = {
        metric: {key: fmean([one[f"margin_{metric}"] for one in cells]) for key, cells in by_set.items()}
        for metric in ("auroc", "fpr95_id")
    }
    means = {
        metric: {suite: fmean([value for key, value in values.items() if key[0] == suite]) for suite in rows}
        for metric, values in found.items()
    }
    worst = min(found["auroc"].items(), key=lambda one: one[1])
    every = [row for part in rows.values() for row in part]
    spent = 1e6 * sum(row["seconds"] for row in every) / sum(row["samples"] for row in every)
    state = max(row["state_bytes"] for row in every)
    return Standing(name, means["auroc"], means["fpr95_id"], ("/".join(worst[0]), worst[1]), spent, state)


def _rows(suite: Suite, names: Sequence[str], out: Path | None, workers: int | None) -> list[Row]:
    runs = list_runs(suite, names=names, orders=("shuffled",), seeds=SEEDS)
    results = ResultFolder(out, suite.name) if out else None
    return [row for _, row in run_all(suite, runs, results, workers=workers)]
