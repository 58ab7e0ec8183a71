"""Is it a difference? Paired bootstrap over seeds and samples of two detectors on the same images."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from unseen.errors import DataError, SettingError
from unseen_bench.run.results import COLUMNS, ResultFolder, Row
from unseen_bench.run.runs import ANY_ORDER

REPLICATES = 1000
METRICS = ("auroc", "fpr95_id")

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A mean over seeds and the middle 95 % of its bootstrap distribution."""

    mean: float
    low: float
    high: float

    @property
    def is_difference(self) -> bool:
        """Whether zero lies outside."""
        return not self.low <= 0 <= self.high

    def __str__(self) -> str:
        """Mean and interval in percentage points."""
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


class Comparison(NamedTuple):
    """B less A on one set in one order: by margin (`margin_auroc`, ...) first, then by raw score (`auroc`, ...)."""

    suite: str
    set: str
    order: str
    a: str
    b: str
    seeds: int
    samples: int
    differences: dict[str, Interval]

    def record(self) -> dict[str, Any]:
        """The comparison as plain values for JSON."""
        intervals = {name: interval._asdict() for name, interval in self.differences.items()}
        return {**self._asdict(), "differences": intervals}

    def __str__(self) -> str:
        """The comparison as a line of what was compared, and one for each metric."""
        seeds = f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        head = f"{self.suite}, {self.set}, {self.order}: {self.b} - {self.a} ({seeds}, {self.samples:,} samples)"
        rows = [
            f"  {name:<16} {interval!s:>25}{'' if interval.is_difference else '  no difference'}"
            for name, interval in self.differences.items()
        ]
        return "\n".join([head, *rows])


def compare(
    one: str, two: str, *, results: Path = Path("results"), replicates: int = REPLICATES
) -> Iterator[Comparison]:
    """Yield `two` less `one`: two detectors of the folder `results`, or two folders, detector by detector."""
    folders = [Path(one), Path(two)] if Path(one).is_dir() and Path(two).is_dir() else [results, results]
    suites = sorted(path.stem for path in folders[0].glob("*.jsonl"))
    if not suites:
        raise SettingError(f"expected results in {folders[0]}, got no .jsonl file; run a suite with -o first")
    for name in suites:
        a, b = (ResultFolder(folder, name) for folder in folders)
        if folders[0] == folders[1]:
            yield from compare_runs((a, b), (one, two), replicates=replicates)
            continue
        for detector in dict.fromkeys(row["detector"] for row in a.rows().values()):
            yield from compare_runs((a, b), (detector, detector), replicates=replicates)


def compare_runs(
    results: tuple[ResultFolder, ResultFolder], names: tuple[str, str], *, replicates: int = REPLICATES
) -> Iterator[Comparison]:
    """Yield B less A wherever both have a run on the same images in the same order.

    A method that never learns has one run for all orders, and is compared with each run of the other.
    """
    a, b = (
        [row for row in one.rows().values() if row["detector"] == name and not row["varied"]]
        for one, name in zip(results, names, strict=True)
    )
    streams = {(tuple(row["sets"]), row["order"]) for row in (*a, *b)}
    orders = {order for _, order in streams}
    found = False
    for sets, order in sorted(streams, key=lambda stream: (stream[1], stream[0])):
        pairs = _row_pairs(_rows_of_stream(a, sets, order), _rows_of_stream(b, sets, order))
        if not pairs or (order == ANY_ORDER and orders != {ANY_ORDER}):
            continue
        found = True
        yield from _on_stream(results, names, order, pairs, replicates)
    if not found:
        raise DataError(
            f"expected runs of {names[0]!r} and {names[1]!r} on the same images in the results, "
            f"got {len(a)} and {len(b)} rows without a common stream; run both with one command"
        )


def bootstrap(
    a: Float[Tensor, "S n"],
    b: Float[Tensor, "S n"],
    known: int,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    chunk: int = 100,
) -> dict[str, Interval]:
    """B less A: seeds and, on each side of the truth, samples are drawn again, the same for both detectors.

    The first `known` columns are ID samples. The columns of both, and the rows of both, belong together. Memory is
    bounded by `chunk` replicates at a time.
    """
    if a.shape != b.shape or not 0 < known < a.shape[1]:
        raise DataError(f"expected scores of one shape with both kinds in it, got {list(a.shape)}, {list(b.shape)}")
    generator = np.random.default_rng(seed)
    plain = _difference(a, b, known, np.ones((1, known)), np.ones((1, a.shape[1] - known)))
    drawn: dict[str, list[Array]] = {name: [] for name in METRICS}
    for start in range(0, replicates, chunk):
        size = min(chunk, replicates - start)
        weights = [_weights(generator, size, count) for count in (known, a.shape[1] - known)]
        seeds = _weights(generator, size, len(a)) / len(a)
        for name, values in _difference(a, b, known, *weights).items():
            drawn[name].append((values * seeds.T).sum(axis=0))
    return {
        name: Interval(float(plain[name].mean()), *np.quantile(np.concatenate(drawn[name]), [0.025, 0.975]).tolist())
        for name in METRICS
    }


def _difference(a: Tensor, b: Tensor, known: int, id_weight: Array, ood_weight: Array) -> dict[str, Array]:
    """The metrics of B less those of A, [S, R]."""
    weights = id_weight, ood_weight
    sides = [[_weighted_metrics(scores, known, *weights) for scores in side.double().numpy()] for side in (a, b)]
    return {
        name: np.stack([two[i] - one[i] for one, two in zip(*sides, strict=True)]) for i, name in enumerate(METRICS)
    }


def _weighted_metrics(scores: Array, known: int, id_weight: Array, ood_weight: Array) -> tuple[Array, Array]:
    """AUROC and ID-positive FPR95 of samples that count as often as their weights say, [R] each."""
    positive, negative = scores[:known], scores[known:]
    order, rising = np.argsort(-positive, kind="stable"), np.argsort(negative, kind="stable")
    positive, negative = positive[order], negative[rising]
    below, not_above = (np.searchsorted(negative, positive, side) for side in ("left", "right"))
    mass = np.pad(ood_weight[:, rising].cumsum(axis=1), ((0, 0), (1, 0)))
    counts, total = id_weight[:, order], mass[:, -1]
    auroc = (counts * (mass[:, below] + mass[:, not_above])).sum(axis=1) / (2 * total * counts.sum(axis=1))
    accepted = counts.cumsum(axis=1)
    last = (accepted < 0.95 * accepted[:, -1:] - 1e-9).sum(axis=1)  # the first sample that completes 95 %
    rows = np.arange(len(mass))
    return auroc, 1 - mass[rows, below[last]] / total


def _weights(generator: np.random.Generator, size: int, count: int) -> Array:
    """How often each of `count` things is drawn in `size` draws of as many."""
    drawn = generator.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
    return np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def _rows_of_stream(side: Sequence[Row], sets: tuple[str, ...], order: str) -> list[Row]:
    own = [row for row in side if tuple(row["sets"]) == sets and row["order"] == order]
    return own or [row for row in side if row["order"] == ANY_ORDER and tuple(row["sets"]) == sets]


def _row_pairs(one: Sequence[Row], two: Sequence[Row]) -> list[tuple[Row, Row]]:
    return [
        (a, b)
        for a in one
        for b in two
        if a["data"] == b["data"] and (a["seed"] == b["seed"] or ANY_ORDER in (a["order"], b["order"]))
    ]


def _on_stream(
    results: tuple[ResultFolder, ResultFolder],
    names: tuple[str, str],
    order: str,
    pairs: Sequence[tuple[Row, Row]],
    replicates: int,
) -> Iterator[Comparison]:
    values = {
        column: [torch.stack([one.samples(pair[i], column) for pair in pairs]) for i, one in enumerate(results)]
        for column in COLUMNS
    }
    if not all(bool(part.isfinite().all()) for sides in values.values() for part in sides):
        return  # an order that leaves samples out: each seed has other samples, and nothing to pair
    row = pairs[0][0]
    start = row["known"]
    for name, count in row["unknown"].items():
        chosen = torch.cat([torch.arange(row["known"]), torch.arange(start, start + count)])
        start += count
        differences: dict[str, Interval] = {}
        for column, prefix in COLUMNS.items():
            a, b = (side[:, chosen] for side in values[column])
            found = bootstrap(a, b, row["known"], replicates=replicates)
            differences |= {f"{prefix}{metric}": interval for metric, interval in found.items()}
        yield Comparison(row["suite"], name, order, *names, len(pairs), len(chosen), differences)
