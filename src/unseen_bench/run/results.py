"""Results on disk: rows as JSON lines, appended whole, and the margin and score of each sample of a run beside them."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen.errors import DataError
from unseen.storage.files import replacing

Row = dict[str, Any]

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
