"""unseen bench compare: which differences between two detectors, or two sets of results, are real."""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen_bench import run as harness


def compare(
    first: Annotated[str, typer.Argument(help="A detector of the results, or a folder of results.")],
    second: Annotated[str, typer.Argument(help="Another detector, or another folder.")],
    suite: Annotated[str | None, typer.Option(help="Only this suite.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of results from `unseen bench`.")] = Path("results"),
    as_json: options.AsJson = False,
) -> None:
    """Print SECOND less FIRST with its p_known interval, set by set, and whether it is a difference.

    Example: `unseen bench compare neglabel online -o results/`
    """
    if not as_json:
        terminal.err.print("differences in percentage points, with 95 % intervals over seeds and samples", markup=False)
    for comparison in harness.compare(first, second, results=out, suite=suite):
        if as_json:
            terminal.emit(comparison.record())
        else:
            terminal.out.print(str(comparison), markup=False)
