"""Verdicts on stdout: as text for people, as JSON or CSV for machines."""

import csv
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unseen.cli import terminal
from unseen.errors import SettingError
from unseen.verdicts import FIELDS

Record = Mapping[str, Any]  # one verdict, with the keys of FIELDS


class Output(NamedTuple):
    """What to call with each verdict, and with the key of each skipped input and the reason."""

    verdict: Callable[[Record], None]
    skipped: Callable[[str, str], None]


def check_folders(*files: Path | None) -> None:
    """Refuse a file to write whose folder is missing, or that is a folder itself, before any work is done."""
    for path in filter(None, files):
        if path.is_dir():
            raise SettingError(f"expected a file to write, got the folder {path}; add a name, such as {path}/out")
        if not path.parent.is_dir():
            raise SettingError(f"expected a folder for {path}, got none; make it first: mkdir -p {path.parent}")


def choose(*, as_json: bool, as_csv: bool = False, width: int = 24) -> Output:
    """Return the output that the options ask for; `width` is that of the column for keys in text."""
    if as_json and as_csv:
        raise SettingError("expected --json or --csv, got both; choose one")
    if as_json:
        return Output(terminal.emit, lambda key, reason: terminal.emit({"key": key, "skipped": reason}))
    if as_csv:
        return _csv_table()
    return Output(
        lambda record: print(sentence(record, width=width)),
        lambda key, reason: print(f"{key:<{width}} skipped: {reason}"),
    )


def _csv_table() -> Output:
    """Return a table for spreadsheets; the reason of a skipped input goes to stderr."""
    table = csv.DictWriter(sys.stdout, FIELDS)
    table.writeheader()

    def skipped(key: str, reason: str) -> None:
        table.writerow({"key": key, "verdict": "skipped"})
        terminal.err.print(f"{key}  skipped: {reason}", markup=False, soft_wrap=True)

    return Output(table.writerow, skipped)


def sentence(record: Record, *, width: int = 24) -> str:
    """Return one verdict as one line: key, name or nearest name, verdict, and how likely that verdict is.

    >>> verdict = {"key": "b.jpg", "verdict": "unknown", "name": None, "nearest": "espresso", "confidence": 0.03}
    >>> sentence(verdict | {"warming": False}, width=8)
    'b.jpg    (nearest: espresso)          unknown  97 % likely'
    """
    is_known, confidence = record["verdict"] == "known", record["confidence"]
    name = record["name"] if is_known else f"(nearest: {record['nearest']})"
    likely = "?" if confidence is None else f"{100 * (confidence if is_known else 1 - confidence):.0f}"
    note = "  (young)" if record["warming"] else ""
    return f"{record['key']:<{width}} {name:<28} {record['verdict']:<8}{likely:>3} % likely{note}"
