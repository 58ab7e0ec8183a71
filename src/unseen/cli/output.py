"""Verdicts on stdout: as text for people, as JSON or CSV for machines."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from unseen.cli import terminal
from unseen.errors import SettingError
from unseen.verdicts import FIELDS

Record = Mapping[str, Any]  # one verdict, with the keys of FIELDS


class Output(Protocol):
    """Where the verdicts of a command go, one by one."""

    def verdict(self, record: Record) -> None:
        """Print one verdict."""

    def skipped(self, key: str, reason: str) -> None:
        """Print that an input has no verdict, and why."""


class TextOutput:
    """One line of text per verdict, with a column of `width` characters for the key."""

    def __init__(self, width: int = 24) -> None:
        self.width = width

    def verdict(self, record: Record) -> None:
        """Print one verdict."""
        print(sentence(record, width=self.width))

    def skipped(self, key: str, reason: str) -> None:
        """Print that an input has no verdict, and why."""
        print(f"{key:<{self.width}} skipped: {reason}")


class JsonOutput:
    """One JSON object per verdict."""

    def verdict(self, record: Record) -> None:
        """Print one verdict."""
        terminal.emit(record)

    def skipped(self, key: str, reason: str) -> None:
        """Print that an input has no verdict, and why."""
        terminal.emit({"key": key, "skipped": reason})


class CsvOutput:
    """A table for spreadsheets; the reason of a skipped input goes to stderr."""

    def __init__(self) -> None:
        self.table = csv.DictWriter(sys.stdout, FIELDS)
        self.table.writeheader()

    def verdict(self, record: Record) -> None:
        """Print one verdict."""
        self.table.writerow(record)

    def skipped(self, key: str, reason: str) -> None:
        """Print that an input has no verdict, and why."""
        self.table.writerow({"key": key, "verdict": "skipped"})
        terminal.err.print(f"{key}  skipped: {reason}", markup=False, soft_wrap=True)


def check(*, as_json: bool, as_csv: bool) -> None:
    """Refuse two outputs at once."""
    if as_json and as_csv:
        raise SettingError("expected --json or --csv, got both; choose one")


def choose(*, as_json: bool, as_csv: bool = False, width: int = 24) -> Output:
    """Return the output that the options ask for."""
    return JsonOutput() if as_json else CsvOutput() if as_csv else TextOutput(width)


def sentence(record: Record, *, width: int = 24) -> str:
    """Return one verdict as one line: key, name or nearest name, verdict, and how likely that verdict is.

    >>> verdict = {"key": "b.jpg", "verdict": "unknown", "name": None, "nearest": "espresso", "confidence": 0.03}
    >>> sentence(verdict | {"warming": False}, width=8)
    'b.jpg    (nearest: espresso)          unknown  97 % likely'
    """
    is_known, confidence = record["verdict"] == "known", record["confidence"]
    name = record["name"] if is_known else f"(nearest: {record['nearest']})"
    likely = "?" if confidence is None else f"{100 * (confidence if is_known else 1 - confidence):.0f}"
    note = "  (warming up)" if record["warming"] else ""
    return f"{record['key']:<{width}} {name:<28} {record['verdict']:<8}{likely:>3} % likely{note}"
