"""unseen bench: run a suite and print its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import unseen
from unseen import bench as harness
from unseen import suites
from unseen.cli import terminal


def bench(
    suite: Annotated[str, typer.Argument(help=f"One of: {', '.join(suites.names())}; or your own TOML table.")],
    features: Annotated[
        Path, typer.Option(help="Folder of feature files the suite names.", exists=True, file_okay=False)
    ],
    detectors: Annotated[
        str, typer.Option(help="Comma-separated names; oracle-online is an upper bound that sees the truth.")
    ] = ",".join(harness.DETECTORS),
    seeds: Annotated[int, typer.Option(help="How many random orders.", min=1)] = 3,
    orders: Annotated[str, typer.Option(help="Comma-separated: shuffled, id_first, ood_first, ...")] = "shuffled",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the rows; a second run resumes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run instead of tables.")] = False,
) -> None:
    """Stream every unknown set of a suite through every detector and judge the scores.

    Example: `unseen bench imagenet200 --features features/ --seeds 10 -o results/`

    Detectors see features only. What routes by the truth is called oracle and stands in a table of its own.
    """
    loaded = suites.load(suite, features)
    runs = harness.grid(loaded, chosen=detectors.split(","), orders=orders.split(","), seeds=seeds)
    path = None
    if out:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{loaded.name}.jsonl"
    rows = []
    with terminal.progress("runs") as bar:
        task = bar.add_task(loaded.name, total=len(runs), rate="")
        for row in harness.resumed(loaded, runs, path, version=unseen.__version__):
            rows.append(row)
            bar.update(task, advance=1, rate=f"{row['detector']} on {row['set']}")
            if as_json:
                terminal.emit(row)
    if not as_json:
        show(loaded, rows)


def show(suite: suites.Suite, rows: list[harness.Row]) -> None:
    """Print label-free results and upper bounds in tables apart."""
    summary = harness.summarised(rows, metrics=("auroc", "fpr95_id", "fpr95_ood", "accuracy"))
    terminal.out.print(f"[bold]{suite.name}[/]: {suite.about}")
    terminal.out.print(f"{suite.labels}; AUROC / fpr95_id, mean ± deviation over seeds, in percent\n")
    for label_free, title in ((True, "label-free"), (False, "upper bound: routes by the truth")):
        chosen = [row for row in summary if row["label_free"] == label_free]
        if chosen:
            terminal.out.print(table(title, chosen))


def table(title: str, rows: list[harness.Row]) -> Table:
    """Return one row per set and order, one column per detector."""
    names = list(dict.fromkeys(row["detector"] for row in rows))
    result = Table("set", "order", *names, title=title, title_justify="left")
    for key in dict.fromkeys((row["set"], row["order"]) for row in rows):
        cells = {row["detector"]: cell(row) for row in rows if (row["set"], row["order"]) == key}
        result.add_row(*key, *(cells[name] for name in names))
    return result


def cell(row: harness.Row) -> str:
    """Return AUROC and ID-positive FPR95 with their deviations."""
    (auroc, spread), (fpr, fpr_spread) = row["auroc"], row["fpr95_id"]
    return f"{100 * auroc:.1f} ±{100 * spread:.1f} / {100 * fpr:.1f} ±{100 * fpr_spread:.1f}"
