"""Verdicts on stdout: as text for people, as JSON or CSV for machines."""

import csv
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from unseen.cli import terminal
from unseen.errors import SettingError
from unseen.storage.csv_cells import as_text_cell
from unseen.verdicts import FIELDS

Record = Mapping[str, Any]  # one verdict, with the keys of FIELDS
NARROWEST = 40  # columns of a terminal for which lines are made
COLUMNS = 80  # from which a verdict is one line; below it is two
NEAR = "near "
FIXED = 39  # of them for verdict, probability, margin and threshold, with the spaces between columns
KEY = 24  # least column for long keys on a terminal
NAME = 17  # least column for the names in a pipe


class Widths(NamedTuple):
    """Columns for the image and for the name; whether longer ones are shortened, and verdicts are two lines."""

    key: int = 22
    name: int = COLUMNS - FIXED - 22
    is_cut: bool = True
    is_narrow: bool = False


EIGHTY = Widths()  # of a line of eighty columns, as the docs show it


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


def check_formats(*, as_json: bool, as_csv: bool) -> None:
    """Refuse two outputs at once."""
    if as_json and as_csv:
        raise SettingError("expected --json or --csv, got both; choose one")


def choose(*, as_json: bool, as_csv: bool = False, key: int = KEY, name: int = 0) -> Output:
    """The output that the options ask for; `key` and `name` are the widths of the longest ones."""
    if as_json:
        return Output(terminal.emit, lambda key, reason: terminal.emit({"key": key, "skipped": reason}))
    return _csv_table() if as_csv else _text(widths(terminal.out.width if terminal.out.is_terminal else 0, key, name))


def longest(words: Iterable[str]) -> int:
    """The columns that the longest of some words takes on a terminal."""
    return max((cell_len(printable(one)) for one in words), default=0)


def widths(columns: int, key: int, name: int) -> Widths:
    """The columns for images and names; 0 `columns` is a file or a pipe, where nothing is shortened.

    >>> widths(80, key=60, name=3)
    Widths(key=33, name=8, is_cut=True, is_narrow=False)
    >>> widths(40, key=60, name=3)
    Widths(key=23, name=16, is_cut=True, is_narrow=True)
    """
    name += len(NEAR)
    if not columns:
        return Widths(key, max(name, NAME), is_cut=False)
    if columns < COLUMNS:
        columns = max(columns, NARROWEST)
        return Widths(columns - 17, columns - 24, is_narrow=True)
    room = columns - FIXED
    key = min(key, max(KEY, room - name))
    return Widths(key, room - key)


def _text(columns: Widths) -> Output:
    """Lines for people."""
    return Output(
        lambda record: print(verdict_line(record, columns)),
        lambda key, reason: print(skipped_line(key, reason, columns)),
    )


def _csv_table() -> Output:
    """A table for spreadsheets; the reason of a skipped input goes to stderr."""
    table = csv.DictWriter(sys.stdout, FIELDS)
    table.writeheader()

    def skipped(key: str, reason: str) -> None:
        table.writerow({"key": as_text_cell(key), "verdict": "skipped"})
        terminal.err.print(f"{key}  skipped: {reason}", markup=False)

    def row(record: Record) -> None:
        table.writerow({name: as_text_cell(value) for name, value in record.items()})

    return Output(row, skipped)


def verdict_line(record: Record, columns: Widths = EIGHTY) -> str:
    """One verdict as one line: image, verdict and how likely it is, name or nearest name, margin and threshold.

    On a narrow terminal it is two lines. A threshold of which too few images have been seen is marked "~".

    >>> verdict = {"key": "b.jpg", "verdict": "unknown", "name": None, "nearest": "espresso", "p_known": 0.03}
    >>> verdict |= {"margin": -2.51, "threshold": 0.4, "warming": False}
    >>> verdict_line(verdict, Widths(key=8, name=33))
    'b.jpg    unknown  97 % likely  near espresso                      -2.51 <   0.40'
    >>> print(verdict_line(verdict, widths(40, key=5, name=8)))
    b.jpg                    -2.51 <   0.40
      unknown  97 % likely  near espresso
    """
    is_known = record["verdict"] == "known"
    limit = f"{'~' if record['warming'] else ''}{_number(record['threshold'])}"
    margin = f"{_number(record['margin']):>6} {'≥' if is_known else '<'} {limit:>6}"
    verdict = f"{record['verdict']:<7} {probability_text(record)}"
    key = printable(record["key"])
    name = printable(record["name"] if is_known else record["nearest"])
    if columns.is_cut:
        key = without_start(key, columns.key)
        name = without_middle(name, columns.name - (0 if is_known else len(NEAR)))
    name = name if is_known else f"{NEAR}{name}"
    if columns.is_narrow:
        return f"{_padded(key, columns.key)} {margin}\n  {verdict}  {name}"
    return f"{_padded(key, columns.key)} {verdict}  {_padded(name, columns.name)} {margin}"


def skipped_line(key: str, reason: str, columns: Widths) -> str:
    """The key of a skipped input and the reason, in two lines on a narrow terminal."""
    words = printable(key)
    if columns.is_narrow:
        return f"{without_start(words, columns.key)}\n  skipped: {reason}"
    return f"{_padded(words, columns.key)} skipped: {reason}"


def probability_text(record: Record) -> str:
    """How likely the verdict itself is, in words; a verdict is by threshold, so it may be the less likely one.

    >>> probability_text({"verdict": "unknown", "p_known": 0.03})
    ' 97 % likely'
    >>> probability_text({"verdict": "known", "p_known": 0.08})
    'only     8 %'
    """
    p_known = record["p_known"]
    if p_known is None:
        return "  ? % likely"
    percent = round(100 * (p_known if record["verdict"] == "known" else 1 - p_known))
    return f"{percent:>3} % likely" if percent >= 50 else f"only {percent:>5} %"


def printable(words: str) -> str:
    """Words on one line, with control characters escaped.

    >>> print(printable("new\\nline.jpg"))
    new\\nline.jpg
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in words)


def without_start(words: str, width: int) -> str:
    """Words that fit a column: the end of a path says more than its beginning.

    >>> without_start("photos/2024/holiday/beach.jpg", 16)
    '…liday/beach.jpg'
    """
    if cell_len(words) <= width:
        return words
    while cell_len(words) > width - 1:
        words = words[1:]
    return f"…{words}"


def without_middle(words: str, width: int) -> str:
    """Words that fit a column, with their beginning and their end.

    >>> without_middle("soft-coated wheaten terrier", 17)
    'soft-coat…terrier'
    """
    if cell_len(words) <= width:
        return words
    tail = without_start(words, width // 2)
    return f"{set_cell_size(words, width - cell_len(tail)).rstrip()}{tail}"


def _padded(words: str, width: int) -> str:
    """Words filled to a column: letters of some scripts take two."""
    return words + " " * (width - cell_len(words))


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:z.{2 if abs(value) < 100 else 0}f}"
