"""One self-contained HTML file: tables and plots of a suite, no script, nothing fetched."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unseen.storage.files import replacing
from unseen_bench.exhibits import plots, tables
from unseen_bench.exhibits.tables import MethodLine, Table
from unseen_bench.exhibits.verdict_tables import verdict_tables
from unseen_bench.run import KINDS, ResultFolder, Row
from unseen_bench.run.runs import ANY_ORDER
from unseen_bench.suites import Suite

METRICS = (
    *("margin_auroc", "auroc", "kept", "rejected", "ece"),
    *("purity_known", "purity_unknown", "coverage_unknown"),
)
SMALL = "{} <small>±{}</small>"
SHOWN = 4  # methods in the histograms: a panel each

STYLE = Path(__file__).with_name("page.css")

PROTOCOL = (
    "Each detector gets unit features in arrival order and nothing else. The first seed replaces, cuts and lengthens "
    "the later half of a piece of its own stream, observes the whole stream again in calls of random lengths, and is "
    "refused if a reading changes. Truth meets scores after the last sample. "
    "fpr95_id is the share of unknown images accepted when 95 % of the known ones are; fpr95_ood is the share of known "
    "images flagged when 95 % of the unknown ones are caught."
)
NOTES = {
    "label-free": "These lines may be compared with one another: all of them work from names alone.",
    "id-images": "Fitted on the first half of each known class and tested on the rest: not comparable with label-free "
    "lines.",
    "oracle": "Routes every sample by its true label, which no detector can. What a line ranks above chance with a "
    "truth drawn at random (permuted) is what the label gives away, not what images tell.",
}


def check_plotting() -> None:
    """Refuse before anything is computed if plots cannot be drawn."""
    plots.pyplot()


def write(path: Path, suite: Suite, rows: Sequence[Row], results: ResultFolder) -> None:
    """Write the report of a suite's rows, with margins from where the rows are kept."""
    with replacing(path) as temporary:
        temporary.write_text(html(suite, rows, results))


def html(suite: Suite, rows: Sequence[Row], results: ResultFolder) -> str:
    """The whole page."""
    sections = list(_sections(suite, rows, results))
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    body = "".join(f'<h2 id="{name}">{escape(title)}</h2>{text}' for name, title, text in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(suite.name)} · unseen bench</title><style>{STYLE.read_text()}</style></head><body>"
        f"<h1>{escape(suite.name)}</h1><p>{escape(suite.about)}.</p>"
        f'<p class="soft">{escape(str(suite.labels))} · data {suite.fingerprint} · '
        f"unseen {escape(rows[0]['version'])} · torch {escape(rows[0]['torch'])}</p>"
        f'<p class="soft">{PROTOCOL}</p><nav>{links}</nav>{body}</body></html>\n'
    )


def _sections(suite: Suite, rows: Sequence[Row], results: ResultFolder) -> Iterator[tuple[str, str, str]]:
    plain = [row for row in rows if not row["varied"]]
    found = tables.tables(rows, suite)
    judged = verdict_tables(rows)
    yield "verdicts", "Verdicts", "".join(_of_kind(one.kind, one.title, grid(one.heads, one.lines)) for one in judged)
    yield "tables", "Ranking", "".join(table_html(table, suite.unclean) for table in found)
    yield "bars", "Each set", "".join(_of_kind(table.kind, table.title, plots.bars(table)) for table in found)
    yield from _from_margins(plain, results)
    learning = [row for row in plain if row["over_time"]]
    if learning:
        yield "stream", "Over the stream", "".join(_streams(learning))
    settings = list(dict.fromkeys(name for row in rows for name in row["varied"]))
    if settings:
        yield "settings", "Settings", "".join(_curves(rows, name) for name in settings)


def _from_margins(rows: Sequence[Row], results: ResultFolder) -> Iterator[tuple[str, str, str]]:
    """Yield ROC curves and histograms of the first seed, a figure per kind."""
    roc, histograms = [], []
    for kind, title in KINDS.items():
        margins = _margins([row for row in rows if row["kind"] == kind], results)
        if margins:
            roc.append(_of_kind(kind, title, plots.roc(margins)))
            shown = {name: dict(list(methods.items())[:SHOWN]) for name, methods in margins.items()}
            histograms.append(_of_kind(kind, title, plots.histograms(shown)))
    yield "roc", "ROC, first seed", "".join(roc)
    yield "margins", "Margins, first seed", "".join(histograms)


def _margins(
    rows: Iterable[Row], results: ResultFolder
) -> dict[str, dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]]:
    """Set -> method -> (margins of known, of unknown images) of single-set streams, as each was first met."""
    found: dict[str, dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    for row in rows:
        if len(row["sets"]) == 1 and row["seed"] == 0 and row["order"] in (ANY_ORDER, "shuffled"):
            margins = results.samples(row).double().numpy()
            found.setdefault(row["sets"][0], {})[row["detector"]] = (margins[: row["known"]], margins[row["known"] :])
    return found


def _streams(rows: Sequence[Row]) -> Iterator[str]:
    for kind, title in KINDS.items():
        for order in dict.fromkeys(row["order"] for row in rows):
            mine = [row for row in rows if row["kind"] == kind and row["order"] == order]
            for metric in METRICS if kind != "oracle" else METRICS[:2]:  # its gate is the truth: always right
                if any(point[metric] is not None for row in mine for point in row["over_time"]):
                    text = f"{title}; order: {order}; {metric.replace('_', ' ')}"
                    yield _of_kind(kind, text, plots.over_stream(mine, metric))


def _curves(rows: Sequence[Row], setting: str) -> str:
    pages = []
    for kind, title in KINDS.items():
        mine = [row for row in rows if row["kind"] == kind and row["varied"] == [setting]]
        if mine:
            pages.append(_of_kind(kind, f"{title}; {setting}", plots.curves(mine, setting)))
    return "".join(pages)


def grid(heads: Sequence[str], lines: Iterable[Sequence[str]], *, sets: Sequence[str] = ()) -> str:
    """A table of texts; `sets` stand above two columns each, after the first, whose heads end in a metric."""
    above = f"<tr><th></th>{''.join(f'<th colspan=2>{escape(name)}</th>' for name in sets)}</tr>" if sets else ""
    below = [heads[0], *(head.rpartition(" ")[2] for head in heads[1:])] if sets else heads
    head = above + "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in below) + "</tr>"
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _of_kind(kind: str, title: str, figure: str) -> str:
    return f'<figure class="{kind}"><h3>{escape(title)}</h3>{figure}</figure>'


def table_html(table: Table, unclean: Sequence[str]) -> str:
    """A table with what may be compared in it."""
    marked = {name: f"{name} *" if name in unclean else name for name in table.columns}
    sets = "".join(f'<th colspan="2">{escape(marked[name])}</th>' for name in table.columns)
    metrics = "<th>AUROC</th><th>FPR95</th>" * len(table.columns)
    head = f"<tr><th></th>{sets}<th></th><th></th></tr><tr><th>method</th>{metrics}<th>µs</th><th>state</th></tr>"
    note = f"<p class='soft'>{NOTES[table.kind]}</p>"
    if table.text_note:
        note += f"<p class='soft'>{escape(table.text_note)}</p>"
    if set(unclean) & set(table.sets):
        note += "<p class='soft'>* known to contain images of known classes.</p>"
    body = "".join(_line(line, table.columns) for line in table.lines)
    grid = f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    return f'<section class="{table.kind}"><h3>{escape(table.title)}</h3>{note}{grid}</section>'


def _line(line: MethodLine, columns: Sequence[str]) -> str:
    cells = "".join(
        f"<td>{text}</td>" for name in columns for text in tables.texts(line.cells.get(name), SMALL, line.digits)
    )
    name = f"{line.method}, as printed" if line.printed else line.method
    kind = ' class="printed"' if line.printed else ""
    cost = f"<td>{tables.time(line)}</td><td>{tables.size(line.state_bytes)}</td>"
    return f"<tr{kind}><td>{escape(name)}</td>{cells}{cost}</tr>"
