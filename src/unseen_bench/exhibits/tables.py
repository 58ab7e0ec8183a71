"""Tables in the paper's layout: one line per method, AUROC and FPR95 of each set, their average, and what it cost.

The margin, which is what a verdict carries, is judged first; where the raw score ranks otherwise, its table follows.
What sees the truth or ID images never stands in a table with label-free lines, so that no column mixes them. A figure
that a paper prints stands on a line of its own below ours.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unseen_bench.exhibits.grid import PRINTED, Grid
from unseen_bench.run import KINDS, Row, mean_and_deviation
from unseen_bench.run.results import COLUMNS
from unseen_bench.run.runs import ANY_ORDER, LABEL_FREE, NEEDS_ID_IMAGES, detector_class
from unseen_bench.suites import Suite

VERDICT_COLUMNS = {
    "kept": "kept",
    "rejected": "rejected",
    "balanced": "balanced",
    "best_threshold": "best threshold",
    "balanced_at_95": "at true 95 %",
    "ece": "ECE, %",
    "kept_first_200": "first 200 kept",
}


class MetricCell(NamedTuple):
    """AUROC and FPR95 in percent, mean and deviation over seeds; no deviation where there is one run."""

    auroc: float
    fpr: float
    auroc_deviation: float | None = None
    fpr_deviation: float | None = None

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> MetricCell:
        """The cell of one (AUROC, FPR95) per seed."""
        (auroc, spread), (fpr, fpr_spread) = (
            mean_and_deviation([100 * x for x in side]) for side in zip(*pairs, strict=True)
        )
        return cls(auroc, fpr, spread, fpr_spread) if len(pairs) > 1 else cls(auroc, fpr)


@dataclass(frozen=True)
class MethodLine:
    """One method, or what a paper prints for it."""

    method: str
    cells: Mapping[str, MetricCell]
    seeds: int = 1
    accuracy: float = math.nan  # percent of the known images that get their own name
    microseconds: float = math.nan
    state_bytes: int | None = None
    printed: bool = False
    text: str = ""  # where the method's text comes from

    @property
    def digits(self) -> int:
        """How many decimals its figures have: what a paper prints is not rounded."""
        return 2 if self.printed else 1


@dataclass(frozen=True)
class Table:
    """Lines that may be compared with one another."""

    suite: str
    kind: str
    order: str
    sets: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]  # averages: near and far, or one over all sets
    fpr: str
    judged_by: str = "margin"
    lines: list[MethodLine] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What the lines have in common."""
        return f"{self.suite}: {KINDS[self.kind]}; order: {self.order}; by {self.judged_by}; FPR95 is {self.fpr}"

    @property
    def text_note(self) -> str:
        """Where the text of the lines comes from: once if it is the same for all, else line by line."""
        texts = {line.method: line.text for line in self.lines if line.text}
        if len(set(texts.values())) == 1:
            return f"Text: {next(iter(texts.values()))}."
        return f"Text: {'; '.join(f'{method} {text}' for method, text in texts.items())}." if texts else ""

    @property
    def reduced_note(self) -> str:
        """What lines leave out of their papers."""
        shared = [line.method.split()[0] for line in self.lines if not line.printed and not line.text.startswith("own")]
        told = {name: getattr(detector_class(name), "reduced", "") for name in shared}
        return "; ".join(f"{name} {text}" for name, text in told.items() if text)

    @property
    def columns(self) -> tuple[str, ...]:
        """The sets and their averages."""
        return (*self.sets, *self.groups)

    def grid(self, unclean: Sequence[str] = ()) -> Grid:
        """The table as texts; the deviation over seeds follows in brackets."""
        marked = [f"{name}*" if name in unclean else name for name in self.columns]
        lines = [
            [
                f"{line.method}{PRINTED}" if line.printed else line.method,
                *(text for name in self.columns for text in texts(line.cells.get(name), "{} ({})", line.digits)),
                number_text(line.accuracy),
                *("—" if line.printed else str(line.seeds), number_text(line.microseconds, 0), size(line.state_bytes)),
            ]
            for line in self.lines
        ]
        notes = [self.text_note, self.reduced_note]
        if set(unclean) & set(self.sets):
            notes.append("* known to contain images of known classes.")
        costs = ("right name", "seeds", "µs", "state")
        own = {"kind": self.kind, "notes": [note for note in notes if note]}
        return Grid.of_sets(self.title, "method", marked, lines, *costs, **own)


def tables(rows: Iterable[Row], suite: Suite) -> list[Table]:
    """A table or two per kind and order: by margin, and by score where that is another ranking.

    Runs of a sweep belong to curves and are left out.
    """
    rows = [row for row in rows if not row["varied"]]
    orders = list(dict.fromkeys(row["order"] for row in rows if row["order"] != ANY_ORDER)) or [ANY_ORDER]
    found = []
    for kind in KINDS:
        for order in orders:
            mine = [row for row in rows if row["kind"] == kind and row["order"] in (order, ANY_ORDER)]
            if any(row["order"] == order for row in mine) or (mine and order == orders[0]):
                is_same = all(one["auroc"] == one["margin_auroc"] for row in mine for one in row["by_set"].values())
                for judged_by in list(COLUMNS)[: 1 if is_same else None]:  # the score where it is another ranking
                    table = Table(suite.name, kind, order, suite.sets, suite.groups, suite.fpr, judged_by)
                    table.lines.extend(_lines(mine, table, suite.paper))
                    found.append(table)
    return found


def size(count: int | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "—"
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def _lines(rows: Sequence[Row], table: Table, paper: Mapping[str, Any]) -> list[MethodLine]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        initials = "-".join(name[0].upper() for name in row["sets"])  # of a shift, as the paper writes it: I-S-P-T
        groups[row["detector"], initials if len(row["sets"]) > 1 else ""].append(row)
    lines = []
    for (detector, shift), group in groups.items():
        method = f"{detector} {shift}".strip()
        lines.append(_line(method, group, table))
        printed = paper.get(f"{detector} {table.order}", paper.get(method))
        if printed:
            lines.append(_printed_line(method, printed, table))
    return lines


def _line(method: str, rows: Sequence[Row], table: Table) -> MethodLine:
    prefix = COLUMNS[table.judged_by]
    by_set: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in rows:
        for name, metrics in row["by_set"].items():
            by_set[name][row["seed"]] = defined(metrics[f"{prefix}auroc"]), defined(metrics[f"{prefix}{table.fpr}"])
    cells = {name: MetricCell.of(list(pairs.values())) for name, pairs in by_set.items()}
    for group, sets in table.groups.items():
        if all(name in by_set for name in sets):
            cells[group] = MetricCell.of(_averages([by_set[name] for name in sets]))
    spent = sum(row["seconds"] for row in rows) / sum(row["samples"] for row in rows)
    seeds, state_bytes = max(map(len, by_set.values())), max(row["state_bytes"] for row in rows)
    accuracy = mean_of(100 * defined(row["accuracy"]) for row in rows)
    return MethodLine(method, cells, seeds, accuracy, 1e6 * spent, state_bytes, text=rows[0].get("text", ""))


def _averages(sets: Sequence[Mapping[int, tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean over sets, seed by seed, of the seeds that all of them have."""
    seeds = [seed for seed in sets[0] if all(seed in one for one in sets)]
    return [tuple(mean_of(one[seed][i] for one in sets) for i in (0, 1)) for seed in seeds]  # type: ignore[misc]


def _printed_line(method: str, figures: Mapping[str, Any], table: Table) -> MethodLine:
    """What a paper prints; where sets are missing here, its average is of the same sets as ours."""
    cells = {name: MetricCell(*pair) for name, pair in figures.items() if isinstance(pair, list)}
    for group, sets in table.groups.items():
        if group not in cells and all(name in cells for name in sets):
            cells[group] = MetricCell(mean_of(cells[n].auroc for n in sets), mean_of(cells[n].fpr for n in sets))
    return MethodLine(method, cells, printed=True)


def texts(cell: MetricCell | None, with_deviation: str, digits: int = 1) -> list[str]:
    """AUROC and FPR95 as text; `with_deviation` has two places, for where there is one."""
    if cell is None:
        return ["—", "—"]
    pairs = ((cell.auroc, cell.auroc_deviation), (cell.fpr, cell.fpr_deviation))
    return [
        number_text(value, digits)
        if spread is None or math.isnan(value)
        else with_deviation.format(number_text(value, digits), f"{spread:.{digits}f}")
        for value, spread in pairs
    ]


def defined(value: float | None) -> float:
    """A metric, nan for one that is undefined."""
    return math.nan if value is None else value


def number_text(value: float, digits: int = 1) -> str:
    """A number as text, a dash for nan."""
    return "—" if math.isnan(value) else f"{value:,.{digits}f}"


def mean_of(values: Iterable[float]) -> float:
    """The mean; nan if a value is undefined."""
    return mean_and_deviation(list(values))[0]


def verdict_tables(rows: Iterable[Row]) -> list[Grid]:
    """A table per kind and order; a method without an order has only the figures that follow from no rule.

    What routes by the truth has no verdicts.
    """
    rows = [row for row in rows if not row["varied"]]
    found = []
    for kind in (LABEL_FREE, NEEDS_ID_IMAGES):
        for order in dict.fromkeys(row["order"] for row in rows if row["order"] != ANY_ORDER and row["kind"] == kind):
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in rows:
                if row["kind"] == kind and row["order"] in (order, ANY_ORDER):
                    groups[row["detector"]].append(row)
            lines = []
            for method, group in groups.items():
                found_of = {
                    name: [100 * row[name] for row in group if row[name] is not None] for name in VERDICT_COLUMNS
                }
                lines.append((method, *(number_text(mean_of(some or [math.nan])) for some in found_of.values())))
            title = f"{KINDS[kind]}; order: {order}; verdicts, mean of all sets"
            found.append(Grid(title, ("method", *VERDICT_COLUMNS.values()), lines, kind=kind))
    return found
