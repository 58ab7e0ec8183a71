"""Results of suite runs on disk: one JSON line per run, the margin and score of its samples beside it."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen.errors import DataError
from unseen.storage.files import replacing
from unseen_bench.run.jsonl import Row, append_row, canonical_json, read_rows

KEY = ("suite", "sets", "order", "seed", "detector", "settings", "varied", "labels", "data", "version")

COLUMNS = {"margin": "margin_", "score": ""}  # the values that samples are judged by, and how their metrics begin


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
