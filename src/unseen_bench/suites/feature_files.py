"""Suites over feature files: text rows or encoded names on one side, image rows on the other."""

import json
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from unseen.errors import DataError
from unseen.features import Features, load_features
from unseen.labels import LabelSpace
from unseen_bench.suites.base import KNOWN, LabelledSamples

Matches = dict[str, int]  # class of the known images -> position of its name


def files_of(table: Mapping[str, Any]) -> list[str]:
    """The names of every file in the features' folder that a table reads."""
    rows = [table[KNOWN], *table.get("negatives", ()), *table["unknown"].values()]
    named = [f"{row[key]}.safetensors" for row in rows for key in ("text", "images") if key in row]
    lists = [row[key] for row in rows for key in ("rows", "except", "classes") if isinstance(row.get(key), str)]
    return list(dict.fromkeys([*named, *(reference.partition("#")[0] for reference in lists)]))


def from_text_rows(table: Mapping[str, Any], folder: Path) -> tuple[LabelSpace, Matches]:
    """The label space of rows of text features, and where each class of the known images stands in it."""
    known, rows = _text(table[KNOWN], folder)
    parts = [_text(row, folder) for row in table["negatives"]]
    names = _distinct([known.keys[row] for row in rows], set())
    negatives = _distinct([text.keys[row] for text, rows in parts for row in rows], set(names))
    labels = LabelSpace(
        tuple(names),
        tuple(negatives),
        known.z[rows],
        torch.cat([text.z[rows] for text, rows in parts]),
        prompt=known.metadata.get("template", ""),
        encoder=known.metadata.get("encoder", ""),
    )
    keys = known.column(table[KNOWN]["match"]) if "match" in table[KNOWN] else range(len(known.z))
    return labels, {str(keys[row]): position for position, row in enumerate(rows)}


def known_samples(row: Mapping[str, Any], folder: Path, matches: Matches) -> LabelledSamples:
    """The images whose class is one of the known names."""
    images = _load(folder, row["images"])
    position = torch.tensor([matches.get(name, -1) for name in images.classes])[images.true_labels]
    return LabelledSamples(images.z[position >= 0], position[position >= 0])


def unknown_samples(row: Mapping[str, Any], folder: Path) -> LabelledSamples:
    """The images of an unknown set, or of some classes of it."""
    images = _load(folder, row["images"])
    if "classes" not in row:
        return LabelledSamples.unknown(images.z)
    wanted = torch.tensor(_read_indices(row["classes"], folder))
    return LabelledSamples.unknown(images.z[torch.isin(images.true_labels, wanted)])


def _load(folder: Path, name: str) -> Features:
    return load_features(folder / f"{name}.safetensors", unit=False)  # as stored: published figures are of these


def _text(row: Mapping[str, Any], folder: Path) -> tuple[Features, list[int]]:
    text = _load(folder, row["text"])
    rows = _read_indices(row["rows"], folder) if "rows" in row else list(range(len(text.z)))
    left_out = set(_read_indices(row["except"], folder)) if "except" in row else set()
    return text, [index for index in rows if index not in left_out]


def _read_indices(reference: str | list[int], folder: Path) -> list[int]:
    """A list of indices written out, or found at `file.json#key/key` in the features' folder."""
    if isinstance(reference, list):
        return reference
    file, _, keys = reference.partition("#")
    try:
        found = json.loads((folder / file).read_text())
        for key in keys.split("/"):
            found = found[key]
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise DataError(
            f"expected an index list at {reference} in {folder}, got {error!r}; check the folder"
        ) from error
    return list(found)


def _distinct(names: list[str], taken: set[str]) -> list[str]:
    """Names in which one that stood before gets a number: a label space wants each name once."""
    result: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({n})" for n in count(2))
        free = next(each for each in chain([name], numbered) if each not in result and each not in taken)
        result[free] = None
    return list(result)
