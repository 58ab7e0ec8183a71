"""Rows as JSON lines, appended whole and resumed from; the margin and score of each sample of a run beside them.

An experiment is a list of cases, a case a key and the job that computes its row:

    cases = (Case({"suite": name, "seed": seed}, partial(measure, name, seed)) for name in names for seed in range(3))
    for row in run_experiment(cases, Path("rows.jsonl")): ...

A row in the file is not computed again unless the code that decides numbers has changed since.
"""

import hashlib
import json
import math
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen.errors import DataError
from unseen.storage.files import replacing
from unseen_bench.run.version import code_version

Row = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")

KEY = ("suite", "sets", "order", "seed", "detector", "settings", "varied", "labels", "data", "version")

COLUMNS = {"margin": "margin_", "score": ""}  # the values that samples are judged by, and how their metrics begin


def read_rows(path: Path | None) -> list[Row]:
    """The rows of a file, none if there is no file; half a line, which a killed writer leaves, is no row."""
    rows = []
    for line in path.read_text().splitlines() if path and path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row on a line of its own, also after half a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        is_torn = file.seek(0, os.SEEK_END) > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        file.write((b"\n" if is_torn else b"") + json.dumps(row, allow_nan=False).encode() + b"\n")


def canonical_json(value: object) -> str:
    """JSON in which equal values are equal strings: the order of the fields does not count."""
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True)
class ResultFolder:
    """A folder with `SUITE.jsonl`, one line per run, and `SUITE/`, one small file of sample values per run."""

    folder: Path
    suite: str

    @property
    def path(self) -> Path:
        """The file of rows."""
        return self.folder / f"{self.suite}.jsonl"

    def rows(self) -> dict[str, Row]:
        """By key the rows whose sample values are there too."""
        return {row_key(row): row for row in read_rows(self.path) if self._samples(row).exists()}

    def add(self, row: Row, samples: Mapping[str, Float[Tensor, " n"]]) -> None:
        """Write the values of the samples, then the row."""
        with replacing(self._samples(row)) as temporary:
            save_file({name: values.contiguous() for name, values in samples.items()}, temporary)
        append_row(self.path, row)

    def samples(self, row: Row, column: str = "margin") -> Float[Tensor, " n"]:
        """The `margin` or `score` of every sample of a run: the known ones first, then the sets in order."""
        path = self._samples(row)
        try:
            return load_file(path)[column]
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(f"expected the {column}s of a run at {path}, got {error}; run the suite again") from error

    def _samples(self, row: Row) -> Path:
        name = hashlib.sha256(row_key(row).encode()).hexdigest()[:16]
        return self.folder / self.suite / f"{name}.safetensors"


def row_key(row: Mapping[str, Any]) -> str:
    """What two rows of the same run share."""
    return canonical_json([row.get(name) for name in KEY])


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float]:
    """The mean and the sample standard deviation (0 for one value); nan if a value is undefined."""
    numbers = [math.nan if value is None else value for value in values]
    mean = math.fsum(numbers) / len(numbers)
    spread = math.fsum((number - mean) ** 2 for number in numbers)
    return mean, math.sqrt(spread / max(1, len(numbers) - 1))


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: the first column to the left, the others to the right.

    >>> print("\\n".join(markdown_table(("set", "AUROC"), [("near", "88.0")])))
    | set | AUROC |
    |---|--:|
    | near | 88.0 |
    """
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{(len(heads) - 1) * '--:|'}"
    for cells in lines:
        yield f"| {' | '.join(cells)} |"


class Case(NamedTuple):
    """One measurement: what identifies it, and the job that makes it."""

    key: Row
    job: Callable[[], Row]


def resume(keys: Sequence[str], done: dict[str, Row], compute: Callable[[list[int]], Iterator[Row]]) -> Iterator[Row]:
    """Yield the row of every key, in order: from `done`, or from `compute`.

    `compute` gets the positions of the missing keys, each key once, and yields their rows in that order.
    """
    first = {key: position for position, key in reversed(list(enumerate(keys)))}
    fresh = compute([position for position, key in enumerate(keys) if key not in done and first[key] == position])
    for key in keys:
        if key not in done:
            done[key] = next(fresh)
        yield done[key]


def run_experiment(
    cases: Iterable[Case],
    path: Path | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Row]:
    """Yield key and row of every case as one dict, computing only what the file at `path` does not have."""
    listed, version = list(cases), code_version()
    done = {canonical_json(row["key"]): row for row in read_rows(path) if row.get("version") == version}

    def compute(missing: list[int]) -> Iterator[Row]:
        for case in (listed[position] for position in missing):
            row = {"key": case.key, "version": version, **finite(case.job())}
            if path:
                append_row(path, row)
            yield row

    rows = resume([canonical_json(case.key) for case in listed], done, compute)
    for number, (case, row) in enumerate(zip(listed, rows, strict=True), start=1):
        progress(number, len(listed))
        yield {**case.key, **{name: value for name, value in row.items() if name != "key"}}


def finite(row: Row) -> Row:
    """The row with None for every float that is not finite: JSON has no NaN."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of the named fields, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return dict(groups)


def mean(rows: Iterable[Row], name: str) -> float:
    """The mean of one field over rows, leaving out those where it is undefined; NaN if it is nowhere defined."""
    values = [row[name] for row in rows if row[name] is not None]
    return math.fsum(values) / len(values) if values else math.nan


def map_in_processes(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """Yield the result of every item, computed by `workers` processes that each import the code again."""
    context = multiprocessing.get_context("spawn")  # a forked torch may hang in its threads
    quiet: tuple[Any, ...] = (signal.SIGINT, signal.SIG_DFL)  # on Ctrl-C a worker ends without a traceback of its own
    with ProcessPoolExecutor(workers, mp_context=context, initializer=signal.signal, initargs=quiet) as processes:
        try:
            yield from processes.map(function, items)
        finally:
            processes.shutdown(cancel_futures=True)
