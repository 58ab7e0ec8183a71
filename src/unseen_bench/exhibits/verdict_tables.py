"""Tables of verdicts: what sessions decided, by method; and scores by the label spaces that they read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from unseen_bench.exhibits.grid import Grid
from unseen_bench.exhibits.tables import defined, mean_of, number_text
from unseen_bench.methods.parse import SPACE
from unseen_bench.run import KINDS, Row
from unseen_bench.run.runs import ANY_ORDER

VERDICT_COLUMNS = {
    "kept": "kept",
    "rejected": "rejected",
    "balanced": "balanced",
    "best_threshold": "best threshold",
    "balanced_at_95": "at true 95 %",
    "ece": "ECE, %",
    "kept_first_200": "first 200 kept",
}


def verdict_tables(rows: Iterable[Row]) -> list[Grid]:
    """A table per kind and order; a method without an order has only the figures that follow from no rule."""
    rows = [row for row in rows if not row["varied"]]
    found = []
    for kind in KINDS:
        for order in dict.fromkeys(row["order"] for row in rows if row["order"] != ANY_ORDER and row["kind"] == kind):
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in rows:
                if row["kind"] == kind and row["order"] in (order, ANY_ORDER):
                    groups[row["detector"]].append(row)
            lines = [(method, *map(_percent_of(group), VERDICT_COLUMNS)) for method, group in groups.items()]
            title = f"{KINDS[kind]}; order: {order}; verdicts, mean of all sets"
            found.append(Grid(title, ("method", *VERDICT_COLUMNS.values()), lines, kind=kind))
    return found


def cross_table(rows: Iterable[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """Scores by label spaces, AUROC / FPR95 of the margin over sets and seeds, where a run names its space."""
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        score, _, space = row["detector"].partition(f" {SPACE}=")
        if space and not row["varied"]:
            cells[score, space] += row["by_set"].values()
    if not cells:
        return None
    scores, spaces = (list(dict.fromkeys(key[side] for key in cells)) for side in (0, 1))
    lines = [(score, *(_mean_cell(cells[score, space]) for space in spaces)) for score in scores]
    return ("score, by whose negatives", *spaces), lines


def _mean_cell(by_set: Sequence[Row]) -> str:
    if not by_set:
        return "—"
    auroc, fpr = (mean_of(defined(one[name]) for one in by_set) for name in ("margin_auroc", "margin_fpr95_id"))
    return f"{number_text(100 * auroc)} / {number_text(100 * fpr)}"


def _percent_of(rows: Sequence[Row]) -> Callable[[str], str]:
    def text(metric: str) -> str:
        values = [100 * value for row in rows if (value := row[metric]) is not None]
        return number_text(mean_of(values) if values else math.nan)

    return text
