"""What every command shares: where words go, where data goes, and what the exit code means."""

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

DONE, SKIPPED, MISUSE, STOPPED = 0, 1, 2, 130

# a line is one line, also in a log or a pipe, which rich takes for 80 columns wide
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)  # words and progress: never mixed into piped data


def fail(error: Exception) -> None:
    """Say in one line what went wrong."""
    err.print(f"[bold red]{type(error).__name__}[/]: ", end="")
    err.print(str(error), markup=False)


def warn(text: str) -> None:
    """Print a warning."""
    err.print("[yellow]warning[/]: ", end="")
    err.print(text, markup=False)


def emit(row: Mapping[str, object]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(_plain(row), ensure_ascii=False, default=str, allow_nan=False), flush=True)


def progress(unit: str) -> Progress:
    """A progress bar on stderr that counts `unit`s, says how fast, and how long it will take."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit} · {{task.fields[rate]}}"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        redirect_stdout=out.is_terminal,  # else a bar on the terminal would swallow data on its way into a pipe
    )


def _plain(value: Any) -> Any:
    """A value with null for what JSON has no number for: a share of nothing is nan."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
