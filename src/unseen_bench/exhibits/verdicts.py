"""One HTML page about verdicts: a table of streams, goals, and how p_known and truth agree."""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Bool, Float
from torch import Tensor

from unseen.storage.files import replacing
from unseen_bench.exhibits import plots
from unseen_bench.exhibits.grid import Grid, render
from unseen_bench.metrics import ReliabilityBin, calibration_error, reliability
from unseen_bench.run import Row, grouped
from unseen_bench.run.experiment import finite

Bins = list[list[float | None]]  # samples, mean confidence and share known of each bin, as a row holds them


def bins_of(p_known: Float[Tensor, " T"], is_id: Bool[Tensor, " T"]) -> Bins:
    """How p_known and truth agree, as JSON can hold it."""
    return [list(finite(one._asdict()).values()) for one in reliability(p_known, is_id)]


def joined_bins(rows: Sequence[Row]) -> list[ReliabilityBin]:
    """The bins of several streams as those of one, every sample counting once."""
    found = []
    for parts in zip(*(row["reliability"] for row in rows), strict=True):
        samples = sum(part[0] for part in parts)
        sums = [sum(part[0] * (part[i] or 0) for part in parts) for i in (1, 2)]
        found.append(ReliabilityBin(samples, *(total / samples if samples else float("nan") for total in sums)))
    return found


def write(path: Path, table: Sequence[str], goals: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the page, whole or not at all; `table` is a table in Markdown."""
    by_order: dict[str, dict[str, list[ReliabilityBin]]] = {}
    for (order, suite), group in grouped(rows, "order", "suite").items():
        by_order.setdefault(order, {})[suite] = joined_bins(group)
    errors = "; ".join(f"{order} {max(map(calibration_error, of.values())):.3f}" for order, of in by_order.items())
    head, _, *lines = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in table)
    streams, figure = Grid("", head, lines), plots.reliability(by_order)
    with replacing(path) as temporary:
        page = render("verdicts.html", goals=goals, errors=errors, figure=figure, streams=streams)
        temporary.write_text(page, encoding="utf-8")
