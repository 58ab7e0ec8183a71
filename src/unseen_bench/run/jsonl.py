"""JSON lines: one row per line, appended whole."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


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
