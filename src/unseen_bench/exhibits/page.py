"""One self-contained HTML file: tables and plots of a suite, no script, nothing fetched."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unseen.storage.files import replacing
from unseen_bench.exhibits import plots, tables
from unseen_bench.exhibits.grid import Figure, Grid, render
from unseen_bench.exhibits.tables import verdict_tables
from unseen_bench.run import KINDS, ResultFolder, Row
from unseen_bench.run.runs import ANY_ORDER
from unseen_bench.suites import Suite

METRICS = (
    *("margin_auroc", "auroc", "kept", "rejected", "ece"),
    *("purity_known", "purity_unknown", "coverage_unknown"),
)
SHOWN = 4  # methods in the histograms: a panel each
Section = tuple[str, str, Sequence[Grid | Figure]]  # anchor, title, parts


def check_plotting() -> None:
    """Refuse before anything is computed if plots cannot be drawn."""
    plots.pyplot()


def write(path: Path, suite: Suite, rows: Sequence[Row], results: ResultFolder) -> None:
    """Write the report of a suite's rows, with margins from where the rows are kept."""
    sections = list(_sections(suite, rows, results))
    with replacing(path) as temporary:
        temporary.write_text(render("suite.html", suite=suite, row=rows[0], sections=sections))


def _sections(suite: Suite, rows: Sequence[Row], results: ResultFolder) -> Iterator[Section]:
    plain = [row for row in rows if not row["varied"]]
    yield "verdicts", "Verdicts", verdict_tables(rows)
    yield "tables", "Ranking", [table.grid(suite.unclean) for table in tables.tables(rows, suite)]
    yield "margins", "Margins, first seed", list(_from_margins(plain, results))
    learning = [row for row in plain if row["over_time"]]
    if learning:
        yield "stream", "Over the stream", list(_streams(learning))
    settings = list(dict.fromkeys(name for row in rows for name in row["varied"]))
    if settings:
        yield "settings", "Settings", [figure for name in settings for figure in _curves(rows, name)]


def _from_margins(rows: Sequence[Row], results: ResultFolder) -> Iterator[Figure]:
    """Yield how margins lie in single-set streams of the first seed, as each was first met: a figure per kind."""
    for kind, title in KINDS.items():
        found: dict[str, dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
        for row in (row for row in rows if row["kind"] == kind and row["seed"] == 0 and len(row["sets"]) == 1):
            methods = found.setdefault(row["sets"][0], {})
            if row["order"] in (ANY_ORDER, "shuffled") and len(methods) < SHOWN:
                margins = results.samples(row).double().numpy()
                methods[row["detector"]] = (margins[: row["known"]], margins[row["known"] :])
        if any(found.values()):
            yield Figure(title, plots.histograms(found), kind)


def _streams(rows: Sequence[Row]) -> Iterator[Figure]:
    for kind, title in KINDS.items():
        for order in dict.fromkeys(row["order"] for row in rows):
            mine = [row for row in rows if row["kind"] == kind and row["order"] == order]
            for metric in METRICS if kind != "oracle" else METRICS[:2]:  # its gate is the truth: always right
                if any(point[metric] is not None for row in mine for point in row["over_time"]):
                    text = f"{title}; order: {order}; {metric.replace('_', ' ')}"
                    yield Figure(text, plots.over_stream(mine, metric), kind)


def _curves(rows: Sequence[Row], setting: str) -> Iterator[Figure]:
    for kind, title in KINDS.items():
        mine = [row for row in rows if row["kind"] == kind and row["varied"] == [setting]]
        if mine:
            yield Figure(f"{title}; {setting}", plots.curves(mine, setting), kind)
