"""The one place that prints: verdicts as text, JSON or CSV; words, warnings and progress on stderr."""

import csv
import json
import math
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unseen.errors import SettingError, check_choice
from unseen.storage.csv_cells import as_text_cell

DONE, SKIPPED, MISUSE, STOPPED = 0, 1, 2, 130

# a line is one line, also in a log or a pipe, which rich takes for 80 columns wide
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)  # words and progress: never mixed into piped data

# as `unseen.verdicts` has them
FIELDS = ("key", "verdict", "name", "nearest", "margin", "threshold", "p_known", "warming", "likely")
REGION_FIELDS = (*FIELDS, "photo", "box", "detector", "detector_score", "agrees")  # of a part of a photo
VERDICTS = ("known", "doubtful", "unknown")
Record = Mapping[str, Any]  # one verdict, with the keys of FIELDS
NARROWEST = 40  # columns of a terminal for which lines are made
COLUMNS = 80  # from which a verdict is one line; below it is two
NEAR = "near "
MARKS = {"unknown": (NEAR, ""), "doubtful": ("", "?")}  # before and behind the nearest name of an image
FIXED = 18  # of them for verdict and probability, with the spaces between columns
WIDE = 100  # columns of a terminal from which a line says what an image may be instead
LIKELY = 28  # of them for it
KEY = 24  # least column for long keys on a terminal
NAME = 17  # least column for the names in a pipe


def fail(error: Exception) -> None:
    """Say in one line what went wrong."""
    err.print(f"[bold red]{type(error).__name__}[/]: ", end="")
    err.print(str(error), markup=False)


def warn(text: str) -> None:
    """Print a warning."""
    err.print("[yellow]warning[/]: ", end="")
    err.print(text, markup=False)


def say(text: str) -> None:
    """Print a line of words, which never mixes with data in a pipe."""
    err.print(text, markup=False)


def emit(row: Mapping[str, object], file: TextIO | None = None) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(_plain(row), ensure_ascii=False, default=str, allow_nan=False), flush=True, file=file)


def _plain(value: Any) -> Any:
    """A value with null for what JSON has no number for: a share of nothing is nan."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def print_skipped(key: str, reason: str, *, as_json: bool = False) -> None:
    """Print an input without a verdict and the reason."""
    if as_json:
        emit({"key": key, "skipped": reason})
    else:
        say(f"{key}  skipped: {reason}")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM, which schedulers send before they kill, raise KeyboardInterrupt.

    Outside they end the command at once: imports in C swallow the exception (see `unseen.__main__`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, signal.default_int_handler) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def progress(unit: str) -> Iterator[Progress]:
    """A progress bar on stderr that counts `unit`s, says how fast, and how long it will take."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit} · {{task.fields[rate]}}"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        redirect_stdout=out.is_terminal,  # else a bar on the terminal would swallow data on its way into a pipe
    )
    with interruptible(), bar:
        yield bar


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


class Lines(NamedTuple):
    """Where verdicts go: what to call with each, and with the key of each skipped input and the reason."""

    verdict: Callable[[Record], object]
    skipped: Callable[[str, str], None]


def both(lines: Lines, note: Callable[[Record], object]) -> Lines:
    """Lines whose verdicts are noted as well."""
    return lines._replace(verdict=lambda record: (lines.verdict(record), note(record)))


class Format(NamedTuple):
    """The form of a table of verdicts, as the options ask for it, and its file."""

    as_json: bool = False
    as_csv: bool = False
    path: Path | None = None  # stdout where there is none
    only: Sequence[str] = ()  # verdicts that are written; all where there is none
    fields: Sequence[str] = FIELDS  # columns of a CSV

    @classmethod
    def of(cls, *, as_json: bool, path: Path | None = None, only: Sequence[str] | None = None) -> "Format":
        """The form that the options ask for; refuse a file whose form nobody knows."""
        for word in only or ():
            check_choice("a verdict", word, VERDICTS)
        if path is None:
            return cls(as_json, only=only or ())
        if path.suffix not in (".jsonl", ".json", ".csv", ".txt"):
            raise SettingError(f"expected -o with a file .jsonl, .csv or .txt, got {path}; add one of these endings")
        check_folders(path)
        return cls(path.suffix in (".jsonl", ".json"), path.suffix == ".csv", path, only or ())

    @contextmanager
    def lines(self, key: int = KEY, name: int = 0) -> Iterator[Lines]:
        """The lines of this form; `key` and `name` are the widths of the longest ones."""
        width = out.width if self.path is None and out.is_terminal else 0
        opened = self.path.open("w", encoding="utf-8", newline="") if self.path else nullcontext(sys.stdout)
        with opened as file:
            every = self._lines(file, widths(width, key, name))
            # of the verdicts that are wanted; the reason of a skipped input then goes to stderr
            wanted = Lines(lambda record: record["verdict"] in self.only and every.verdict(record), print_skipped)
            yield wanted if self.only else every

    def _lines(self, file: TextIO, columns: "Widths") -> Lines:
        if self.as_json:
            return Lines(
                lambda record: emit(record, file), lambda key, reason: emit({"key": key, "skipped": reason}, file)
            )
        if not self.as_csv:
            return Lines(
                lambda record: print(verdict_line(record, columns), file=file),
                lambda key, reason: print(skipped_line(key, reason, columns), file=file),
            )
        table = csv.DictWriter(file, self.fields, extrasaction="ignore")
        table.writeheader()

        def skipped(key: str, reason: str) -> None:
            table.writerow({"key": as_text_cell(key), "verdict": "skipped"})
            print_skipped(key, reason)

        return Lines(lambda one: table.writerow({name: as_text_cell(cell) for name, cell in one.items()}), skipped)


class Widths(NamedTuple):
    """Columns for the image and for the name; whether longer ones are shortened, and verdicts are two lines."""

    key: int = 32
    name: int = COLUMNS - FIXED - 32
    is_cut: bool = True
    is_narrow: bool = False
    likely: int = 0  # for the word that an image may be instead


EIGHTY = Widths()  # of a line of eighty columns, as the docs show it


def longest(words: Iterable[str]) -> int:
    """The columns that the longest of some words takes on a terminal."""
    return max((cell_len(printable(one)) for one in words), default=0)


def widths(columns: int, key: int, name: int) -> Widths:
    """The columns for images and names; 0 `columns` is a file or a pipe, where nothing is shortened.

    >>> widths(80, key=60, name=3)
    Widths(key=54, name=8, is_cut=True, is_narrow=False, likely=0)
    >>> widths(40, key=60, name=3)
    Widths(key=40, name=21, is_cut=True, is_narrow=True, likely=0)
    """
    name += len(NEAR)
    if not columns:
        return Widths(key, max(name, NAME), is_cut=False, likely=LIKELY)
    if columns < COLUMNS:
        columns = max(columns, NARROWEST)
        return Widths(columns, columns - FIXED - 1, is_narrow=True)
    likely = LIKELY if columns >= WIDE else 0
    room = columns - FIXED - likely
    key = min(key, max(KEY, room - name))
    return Widths(key, room - key, likely=likely)


def verdict_line(record: Record, columns: Widths = EIGHTY) -> str:
    """One verdict as one line: image, verdict, name or nearest name, and how likely the image is known.

    On a narrow terminal it is two lines.

    >>> verdict = {"key": "b.jpg", "verdict": "unknown", "name": None, "nearest": "espresso", "p_known": 0.03}
    >>> verdict_line(verdict, Widths(key=8, name=22))
    'b.jpg    unknown   near espresso             3 %'
    >>> verdict_line(verdict | {"likely": "cappuccino"}, Widths(key=8, name=14, likely=28))
    'b.jpg    unknown   near espresso     3 %   or: cappuccino'
    >>> print(verdict_line(verdict | {"verdict": "doubtful", "name": "espresso"}, widths(40, key=5, name=8)))
    b.jpg
      doubtful  espresso?                3 %
    """
    before, after = MARKS.get(record["verdict"], ("", ""))
    key, name = printable(record["key"]), printable(record["nearest"])
    if columns.is_cut:
        key = without_start(key, columns.key)
        name = without_middle(name, columns.name - len(before + after))
    name = _padded(f"{before}{name}{after}", columns.name)
    p_known = "?" if record["p_known"] is None else f"{100 * record['p_known']:.0f}"
    verdict = f"{record['verdict']:<8}  {name}  {p_known:>3} %"
    if columns.likely and (likely := record.get("likely")):  # what it may be
        words = f"   or: {printable(likely)}"
        verdict += without_middle(words, columns.likely) if columns.is_cut else words
    if "detector" in record:  # what one said of a region
        score = "" if record["detector_score"] is None else f" {record['detector_score']:.2f}"
        verdict += f"   detector: {printable(record['detector'])}{score}{'' if record['agrees'] else ', disagrees'}"
    return f"{key}\n  {verdict}" if columns.is_narrow else f"{_padded(key, columns.key)} {verdict}"


def skipped_line(key: str, reason: str, columns: Widths) -> str:
    """The key of a skipped input and the reason, in two lines on a narrow terminal."""
    words = printable(key)
    if columns.is_narrow:
        return f"{without_start(words, columns.key)}\n  {'skipped':<8}  {reason}"
    return f"{_padded(words, columns.key)} {'skipped':<8}  {reason}"


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
