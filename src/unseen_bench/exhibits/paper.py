"""The paper's tables and figures, ours and printed: a section for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.storage.files import replacing
from unseen_bench import suites
from unseen_bench.exhibits import plots, tables
from unseen_bench.exhibits.grid import Figure, Grid, render
from unseen_bench.exhibits.tables import MetricCell
from unseen_bench.run import Row, code_version, mean_and_deviation
from unseen_bench.run.paper import NOTES, Exhibit, Outcome, odd_averages, printed_results
from unseen_bench.suites import Suite

PUBLISHED = "published elsewhere: {}; these see a batch of 256 images before they score it (transductive)"
INTRODUCTION = (
    "Every table and figure of the paper with what could be run on the data at hand. Ours come first, then what is "
    "printed, then why they differ. AUROC and FPR95 in percent."
)


@dataclass(frozen=True)
class ExhibitSection:
    """One exhibit: what was missing, what was run, what is printed, and why they differ."""

    outcome: Outcome
    parts: list[Grid | Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the paper calls it."""
        return self.outcome.exhibit.name

    @property
    def title(self) -> str:
        """Its heading."""
        return f"{self.name}: {self.outcome.exhibit.title}"

    @property
    def head(self) -> list[str]:
        """What stands under the heading: what was done, and all that was missing."""
        return [f"State: {self.outcome.state}.", *(f"Missing: {one}." for one in self.outcome.missing)]


def write(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Write paper.html, paper.md, paper.tex and the figures as files of their own; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = [section(one) for one in outcomes]
    states = Grid("", ("exhibit", "state"), [(one.title, one.outcome.state) for one in sections])
    own = {"introduction": INTRODUCTION, "version": code_version(), "sections": sections, "states": states}
    forms = {"html": "paper.html", "md": "paper.markdown", "tex": "paper.tex"}
    texts = {f"paper.{form}": render(template, **own) for form, template in forms.items()}
    for figure in (part for one in sections for part in one.parts if isinstance(part, Figure)):
        standing = figure.svg.replace("currentColor", "#1d2126").replace("<svg ", '<svg style="background: #fff" ', 1)
        texts[f"figure-{figure.name}.svg"] = standing
    for name, text in texts.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text)
    return [folder / name for name in texts]


def section(outcome: Outcome) -> ExhibitSection:
    """The section of an exhibit from the rows of its suites."""
    exhibit = outcome.exhibit
    parts = [part for suite, rows in outcome.ran for part in _our_parts(exhibit, suite, rows)]
    parts += map(_printed_table, exhibit.printed)
    if not exhibit.sweeps and not exhibit.printed:
        parts += _printed_only(exhibit, outcome.ran)
    if exhibit.has_published:
        parts += [_printed_grid(PUBLISHED.format(name), suites.read(name)["published"]) for name in exhibit.suites]
    stands_in = any(suite.name not in exhibit.suites for suite, _ in outcome.ran)
    most = {one.name: exhibit.most_seeds(one) for one, _ in outcome.ran}
    few = [f"{name} runs with at most {seeds} seeds." for name, seeds in most.items() if seeds]
    notes = " ".join(NOTES[name] for name in exhibit.notes)
    return ExhibitSection(
        outcome, parts, [notes, *([NOTES["stand-in"]] if stands_in else []), *few, *odd_averages(exhibit)]
    )


def _printed_only(exhibit: Exhibit, ran: Sequence[tuple[Suite, Sequence[Row]]]) -> Iterator[Grid]:
    """Yield the printed lines that do not stand beside one of ours."""
    beside = {suite.name: {row["detector"] for row in rows} for suite, rows in ran}
    for name, lines in printed_results(exhibit).items():
        rest = {method: row for method, row in lines.items() if method.split()[0] not in beside.get(name, ())}
        if rest:
            yield _printed_grid(f"printed: {name}", rest)


def _our_parts(exhibit: Exhibit, suite: Suite, rows: Sequence[Row]) -> Iterator[Grid | Figure]:
    name = exhibit.name
    if name == "Table 12":
        yield cost_grid(suite, rows)
    elif name == "Table 13":
        yield from seed_grids(suite, rows)
    elif name == "Figure 1":
        for setting in dict.fromkeys(one for row in rows for one in row["varied"]):
            yield setting_grid(suite, rows, setting)
            mine = [row for row in rows if row["varied"] == [setting]]
            yield Figure(f"{suite.name}: {setting}", plots.curves(mine, setting), name=f"{suite.name}-{setting}")
    else:
        yield from (table.grid() for table in tables.tables(rows, suite) if table.judged_by == "margin")
    learning = [row for row in rows if row["over_time"] and not row["varied"]]
    mixed = [row for row in learning if row["order"] == "shuffled"]  # slices of other orders have one kind only
    if name == "Table 11" and mixed:
        title = f"{suite.name}: AUROC of the margin over the stream, shuffled"
        yield Figure(title, plots.over_stream(mixed, "margin_auroc"), name=f"{suite.name}-shuffled")


def cost_grid(suite: Suite, rows: Sequence[Row]) -> Grid:
    """State and seconds per set of each method, mean over seeds."""
    lines = []
    for method in dict.fromkeys(row["detector"] for row in rows):
        mine = [row for row in rows if row["detector"] == method]
        seconds = [
            mean_and_deviation([row["seconds"] for row in mine if row["sets"] == [name]])[0] for name in suite.sets
        ]
        size = tables.size(max(row["state_bytes"] for row in mine))
        lines.append([method, size, *(f"{value:.2f}" for value in (*seconds, math.fsum(seconds)))])
    return Grid(f"{suite.name}: seconds per set", ["method", "state", *suite.sets, "total"], lines)


def seed_grids(suite: Suite, rows: Sequence[Row]) -> Iterator[Grid]:
    """Yield one grid per method: AUROC and FPR95 of each set for each seed, with two decimals, mean and deviation."""
    for method in dict.fromkeys(row["detector"] for row in rows):
        by_seed: dict[int, dict[str, tuple[float, float]]] = {}
        for row in (row for row in rows if row["detector"] == method):
            for name, metrics in row["by_set"].items():
                by_seed.setdefault(row["seed"], {})[name] = (metrics["margin_auroc"], metrics[f"margin_{suite.fpr}"])
        values = {seed: _with_average([sets[name] for name in suite.sets]) for seed, sets in sorted(by_seed.items())}
        spread = [mean_and_deviation(column) for column in zip(*values.values(), strict=True)]
        lines = [[str(seed), *(f"{value:.2f}" for value in one)] for seed, one in values.items()]
        lines += [["mean", *(f"{mean:.2f}" for mean, _ in spread)], ["std", *(f"{std:.2f}" for _, std in spread)]]
        yield Grid.of_sets(f"{suite.name}: {method}, each seed", "seed", (*suite.sets, average_name(suite)), lines)


def average_name(suite: Suite) -> str:
    """The head of a mean over all sets of a suite, with their number where some are missing."""
    return "average" if len(suite.sets) == len(suite.table["unknown"]) else f"average of {len(suite.sets)}"


def setting_grid(suite: Suite, rows: Sequence[Row], setting: str) -> Grid:
    """AUROC and FPR95 of each set for each value of a setting, mean over seeds."""
    mine = [row for row in rows if row["varied"] == [setting]]
    lines = []
    for value in sorted({row["settings"][setting] for row in mine}):
        pairs = [
            _mean_pair([row for row in mine if row["settings"][setting] == value], name, suite.fpr)
            for name in suite.sets
        ]
        lines.append([f"{value:g}", *(f"{number:.2f}" for number in _with_average(pairs))])
    return Grid.of_sets(f"{suite.name}: {setting}", setting, (*suite.sets, average_name(suite)), lines)


def _mean_pair(rows: Sequence[Row], name: str, fpr: str) -> tuple[float, float]:
    found = [row["by_set"][name] for row in rows if name in row["by_set"]]
    auroc, rate = (
        mean_and_deviation([one[metric] for one in found])[0] for metric in ("margin_auroc", f"margin_{fpr}")
    )
    return auroc, rate


def _with_average(pairs: Sequence[tuple[float, float]]) -> list[float]:
    average = tuple(math.fsum(side) / len(pairs) for side in zip(*pairs, strict=True))
    return [100 * value for pair in (*pairs, average) for value in pair]


def _printed_table(table: Mapping[str, Any]) -> Grid:
    title, heads, lines = table["title"], table["heads"], table["lines"]
    return Grid.of_sets(title, heads[0], table["sets"], lines) if "sets" in table else Grid(title, heads, lines)


def _printed_grid(title: str, figures: Mapping[str, Mapping[str, Sequence[float]]]) -> Grid:
    sets = list(dict.fromkeys(one for row in figures.values() for one in row))
    lines = [
        [method, *(text for one in sets for text in _printed_cell(row.get(one)))] for method, row in figures.items()
    ]
    return Grid.of_sets(title, "method", sets, lines)


def _printed_cell(figures: Sequence[float] | None) -> list[str]:
    return tables.texts(None if figures is None else MetricCell(*figures), "{} ({})", digits=2)
