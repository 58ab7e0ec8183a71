"""Names out of files as people keep them: text, CSV, JSON, YAML; UTF-8, or UTF-16 with its mark."""

import codecs
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unseen.errors import LabelError, import_extra

BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
COLUMNS = ("name", "names", "label", "labels", "class", "classes", "class_name", "classname", "category", "categories")
DELIMITERS = ",;\t"
WNID = re.compile(r"n\d{8}")  # how WordNet numbers a noun
NUMBERED = list[tuple[int, str]]  # line, row or entry, from 1, and the name there
FORMS = 'a list of names, a list of objects with "name", {"names": [...]}, or {"0": "name", ...}'


def numbered_names(path: Path) -> NUMBERED:
    """The names of a file with their places; the end of its name says how it is written."""
    text, suffix = read_text(path), path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _of_table(path, text)
    if suffix == ".json":
        return _of_json(path, text)
    if suffix in (".yaml", ".yml"):
        return _of_yaml(path, text)
    return _of_lines(text)


def _of_lines(text: str) -> NUMBERED:
    lines = [line.strip() for line in text.splitlines()]
    return [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]


def _of_table(path: Path, text: str) -> NUMBERED:
    """The column that a header calls name, label or class; without such a header the first that is no number."""
    lines = [line if not line.lstrip().startswith("#") else "" for line in text.splitlines()]
    first = next(filter(None, map(str.strip, lines)), "")
    delimiter = max(DELIMITERS, key=first.count)
    rows = [(number, [cell.strip() for cell in row]) for number, row in _rows(lines, delimiter) if any(row)]
    if not rows:
        return []
    head = [cell.lower() for cell in rows[0][1]]
    column = next((head.index(name) for name in COLUMNS if name in head), None)
    if column is not None:
        rows = rows[1:]
    else:
        column = next((i for i, cell in enumerate(head) if not cell.lstrip("-").isdigit()), 0)
    if short := [number for number, row in rows if len(row) <= column or not row[column]]:
        raise LabelError(f"expected a name in column {column + 1} of {path}, got none in line {short[0]}; fill it in")
    return [(number, row[column]) for number, row in rows]


def _rows(lines: list[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter)
    return ((reader.line_num, row) for row in reader)


def _of_json(path: Path, text: str) -> NUMBERED:
    try:
        return _of_value(path, json.loads(text))
    except json.JSONDecodeError as error:
        raise LabelError(f"expected JSON in {path}, got {error}; correct it, or call the file .txt") from error


def _of_yaml(path: Path, text: str) -> NUMBERED:
    yaml = import_extra("yaml", "encode")
    try:
        return _of_value(path, yaml.safe_load(text))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())[:160]
        raise LabelError(f"expected YAML in {path}, got {reason}; correct it, or call the file .txt") from error


def _of_value(path: Path, value: Any) -> NUMBERED:
    if isinstance(value, dict):
        only = [*value.values()][:1] if len(value) == 1 else []  # "animals: [cat, dog]"
        inside = [*(value.get(name) for name in COLUMNS), *only]
        inner = next((one for one in inside if isinstance(one, list | dict)), None)
        if inner is not None:
            return _of_value(path, inner)
        value = list(value.values())  # the class of each number
    if not isinstance(value, list):
        raise LabelError(f"expected {FORMS} in {path}, got {type(value).__name__}; write one of these")
    return [(number, _name(path, number, one)) for number, one in enumerate(value, 1)]


def _name(path: Path, number: int, value: Any) -> str:
    if isinstance(value, dict):
        value = next((value[name] for name in COLUMNS if name in value), None)
    if isinstance(value, list) and len(value) == 2 and WNID.fullmatch(str(value[0])):
        value = value[1]  # ["n01440764", "tench"], as ImageNet's index has it
    if not isinstance(value, str):
        raise LabelError(
            f"expected {FORMS} in {path}, got {value!r} as entry {number}; "
            "quote names that look like numbers, or yes and no"
        )
    return value.strip()


def read_text(path: Path) -> str:
    """The text of a file; refuse bytes whose meaning would have to be guessed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LabelError(f"expected a text file at {path}, got {error.strerror}; check the path") from error
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise LabelError(
            f"expected UTF-8 text in {path}, got byte {data[error.start]:#04x} at position {error.start}; "
            f"convert it, for example: iconv -f latin1 -t utf-8 {path.name}"
        ) from error
    if "\0" in text:  # UTF-16 without a byte order mark decodes as UTF-8 with NULs
        raise LabelError(f"expected UTF-8 text in {path}, got NUL characters; save it as UTF-8 (it looks like UTF-16)")
    return text
