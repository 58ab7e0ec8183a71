"""Verdicts on stdout: as text for people, as JSON or CSV for machines."""

import csv
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unseen.cli import terminal
from unseen.errors import SettingError
from unseen.storage.csv_cells import as_text_cell
from unseen.verdicts import FIELDS

Record = Mapping[str, Any]  # one verdict, with the keys of FIELDS
WIDEST = 24  # column for keys on a terminal
COLUMNS = 80  # of a line, where a terminal is no wider
FIXED = 39  # of them for verdict, probability, margin and threshold, with the spaces between columns


class Output(NamedTuple):
    """What to call with each verdict, and with the key of each skipped input and the reason."""

    verdict: Callable[[Record], None]
    skipped: Callable[[str, str], None]


def check_folders(*files: Path | None) -> None:
    """Refuse a file that cannot be written, or that is a folder itself, before any work is done."""
    for path in filter(None, files):
        if path.is_dir():
            raise SettingError(f"expected a file to write, got the folder {path}; add a name, such as {path}/out")
        if not path.parent.is_dir():
            raise SettingError(f"expected a folder for {path}, got none; make it first: mkdir -p {path.parent}")
        check_writable(path.parent)


def check_writable(folder: Path) -> None:
    """Make a folder, and refuse one that takes no files: permissions alone do not tell of read-only disks."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingError(
            f"expected a folder to write files to, got {folder} ({error.strerror or error}); pass another path"
        ) from error


def choose(*, as_json: bool, as_csv: bool = False, width: int = WIDEST) -> Output:
    """Return the output that the options ask for; `width` is that of the longest key."""
    if as_json and as_csv:
        raise SettingError("expected --json or --csv, got both; choose one")
    if as_json:
        return Output(terminal.emit, lambda key, reason: terminal.emit({"key": key, "skipped": reason}))
    return _csv_table() if as_csv else _text(width)


def _text(width: int) -> Output:
    """Return lines for people; where they go into a file or a pipe nothing is shortened."""
    most = max(COLUMNS, terminal.out.width) if terminal.out.is_terminal else 0
    width = min(width, WIDEST) if most else width
    return Output(
        lambda record: print(verdict_line(record, width=width, most=most)),
        lambda key, reason: print(f"{printable(key):<{width}} skipped: {reason}"),
    )


def _csv_table() -> Output:
    """Return a table for spreadsheets; the reason of a skipped input goes to stderr."""
    table = csv.DictWriter(sys.stdout, FIELDS)
    table.writeheader()

    def skipped(key: str, reason: str) -> None:
        table.writerow({"key": as_text_cell(key), "verdict": "skipped"})
        terminal.err.print(f"{key}  skipped: {reason}", markup=False)

    def row(record: Record) -> None:
        table.writerow({name: as_text_cell(value) for name, value in record.items()})

    return Output(row, skipped)


def verdict_line(record: Record, *, width: int = 22, most: int = COLUMNS) -> str:
    """Return one verdict as one line: image, verdict and how likely it is, name or nearest name, margin and threshold.

    `width` is that of the column for the image; `most` columns are filled at most, 0 for no limit. A threshold of which
    too few images have been seen is marked "~".

    >>> verdict = {"key": "b.jpg", "verdict": "unknown", "name": None, "nearest": "espresso", "confidence": 0.03}
    >>> verdict_line(verdict | {"margin": -2.51, "threshold": 0.4, "warming": False}, width=8)
    'b.jpg    unknown  97 % likely  near espresso                      -2.51 <   0.40'
    """
    is_known = record["verdict"] == "known"
    name = record["name"] if is_known else f"near {record['nearest']}"
    limit = f"{'~' if record['warming'] else ''}{_number(record['threshold'])}"
    room = (most or COLUMNS) - width - FIXED
    key = printable(record["key"])
    key = shortened(key, width) if most else key
    if most and len(name) > room:
        name = f"{name[: room - 1]}…"
    return (
        f"{key:<{width}} {record['verdict']:<7} {probability_text(record)}  {name:<{room}} "
        f"{_number(record['margin']):>6} {'≥' if is_known else '<'} {limit:>6}"
    )


def probability_text(record: Record) -> str:
    """Return how likely the verdict itself is, in words; a verdict is by threshold, so it may be the less likely one.

    >>> probability_text({"verdict": "unknown", "confidence": 0.03})
    ' 97 % likely'
    >>> probability_text({"verdict": "known", "confidence": 0.08})
    'only     8 %'
    """
    confidence = record["confidence"]
    if confidence is None:
        return "  ? % likely"
    percent = round(100 * (confidence if record["verdict"] == "known" else 1 - confidence))
    return f"{percent:>3} % likely" if percent >= 50 else f"only {percent:>5} %"


def printable(words: str) -> str:
    """Return words on one line, with control characters escaped.

    >>> print(printable("new\\nline.jpg"))
    new\\nline.jpg
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in words)


def shortened(words: str, width: int) -> str:
    """Return words that fit a column: the end of a path says more than its beginning.

    >>> shortened("photos/2024/holiday/beach.jpg", 16)
    '…liday/beach.jpg'
    """
    return words if len(words) <= width else f"…{words[len(words) - width + 1 :]}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:z.{2 if abs(value) < 100 else 0}f}"
