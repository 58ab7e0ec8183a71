"""Tables of verdicts: what sessions decided, by method; and scores by the label spaces that they read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from unseen_bench.exhibits.grid import Grid
from unseen_bench.exhibits.tables import mean_of, number_text
from unseen_bench.run import KINDS, Row
from unseen_bench.run.runs import ANY_ORDER, LABEL_FREE, NEEDS_ID_IMAGES

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
            lines = [(method, *map(_percent_of(group), VERDICT_COLUMNS)) for method, group in groups.items()]
            title = f"{KINDS[kind]}; order: {order}; verdicts, mean of all sets"
            found.append(Grid(title, ("method", *VERDICT_COLUMNS.values()), lines, kind=kind))
    return found


def _percent_of(rows: Sequence[Row]) -> Callable[[str], str]:
    def text(metric: str) -> str:
        values = [100 * value for row in rows if (value := row[metric]) is not None]
        return number_text(mean_of(values) if values else math.nan)

    return text
