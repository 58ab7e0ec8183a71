"""Rows on disk and in summary: one JSON line per run, the scores of its samples beside it."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class Results:
    """A folder with `SUITE.jsonl`, one line per run, and `SUITE/`, one small file of scores per run."""

    folder: Path
    suite: str

    @property
    def path(self) -> Path:
        """Return the file of rows."""
        return self.folder / f"{self.suite}.jsonl"

    def done(self) -> dict[str, Row]:
        """Return the rows whose scores are there too, by key."""
        rows = read(self.path) if self.path.exists() else []
        return {key(row): row for row in rows if self._scores(row).exists()}

    def add(self, row: Row, scores: Float[Tensor, " n"]) -> None:
        """Write the scores, then the row, on a line of its own even after half a line."""
        with replacing(self._scores(row)) as temporary:
            save_file({"score": scores.contiguous()}, temporary)
        with self.path.open("a+b") as file:
            torn = file.seek(0, os.SEEK_END) > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(row, allow_nan=False).encode() + b"\n")

    def scores(self, row: Row) -> Float[Tensor, " n"]:
        """Return the score of every sample of a run: the known ones first, then the sets in their order."""
        path = self._scores(row)
        try:
            return load_file(path)["score"]
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(f"expected the scores of a run at {path}, got {error}; run the suite again") from error

    def _scores(self, row: Row) -> Path:
        name = hashlib.sha256(key(row).encode()).hexdigest()[:16]
        return self.folder / self.suite / f"{name}.safetensors"


def read(path: Path) -> list[Row]:
    """Return the rows of a JSON-lines file; half a line, which a kill in the middle of a write leaves, is no row."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def key(row: Mapping[str, Any]) -> str:
    """Return what two rows of the same run share."""
    return json.dumps([row.get(name) for name in KEY], sort_keys=True)


def summarised(rows: Iterable[Row], *, metrics: Sequence[str]) -> list[Row]:
    """Return mean and standard deviation over seeds of each (stream, order, detector, settings) on each set.

    A metric of one set against the known images comes from `by_set`; the others belong to the whole stream.
    """
    names = ("suite", "sets", "order", "detector", "kind", "settings", "varied")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[json.dumps([row[name] for name in names], sort_keys=True)].append(row)
    return [
        {
            **{name: group[0][name] for name in names},
            "set": part,
            "seeds": len(group),
            **{name: mean_and_deviation([{**row, **row["by_set"][part]}[name] for row in group]) for name in metrics},
        }
        for group in groups.values()
        for part in group[0]["by_set"]
    ]


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (0 for one value); nan if a value is undefined."""
    numbers = [math.nan if value is None else value for value in values]
    mean = math.fsum(numbers) / len(numbers)
    spread = math.fsum((number - mean) ** 2 for number in numbers)
    return mean, math.sqrt(spread / max(1, len(numbers) - 1))
