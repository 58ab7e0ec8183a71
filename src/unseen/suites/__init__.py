"""Benchmark suites as tables (one TOML file each) over feature files on disk."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unseen.errors import DataError
from unseen.labels import LabelSpace
from unseen.suites.features import FeatureSet
from unseen.trial import Trial

KNOWN = "known"


@dataclass(frozen=True)
class Source:
    """Where a suite comes from: enough for another process to load it again."""

    name: str
    folder: Path

    def load(self) -> Suite:
        """Read the suite."""
        return load(self.name, self.folder)


@dataclass(frozen=True)
class Suite:
    """One label space, the known images, and the unknown sets they are tested against."""

    source: Source
    about: str
    labels: LabelSpace
    pool: Trial  # all samples: known ones first, then one unknown set after another
    paper: Mapping[str, Any] = field(default_factory=dict)  # printed figures: method -> set -> [AUROC, FPR95]
    unclean: tuple[str, ...] = ()  # sets known to contain images of known classes

    @property
    def name(self) -> str:
        """Return the suite's name."""
        return Path(self.source.name).stem

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of every feature and of the truth about it."""
        digest = hashlib.sha256(repr(self.pool.sources).encode())
        for part in (self.pool.z, self.pool.label, self.pool.source):
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the names of the unknown sets."""
        return self.pool.sources[1:]

    def against(self, *sets: str) -> Trial:
        """Return the known samples and the given unknown sets, not yet in any order."""
        chosen = torch.tensor([0, *(self.pool.sources.index(name) for name in sets)])
        return self.pool[torch.isin(self.pool.source, chosen).nonzero().squeeze(1)]


def names() -> list[str]:
    """Return the suites that come with the package."""
    return sorted(
        file.name.removesuffix(".toml") for file in files(__package__).iterdir() if file.name.endswith(".toml")
    )


def load(name: str, folder: str | Path) -> Suite:
    """Return a suite of the package, or one described by your own TOML file, over the feature files in `folder`."""
    table, folder = _table(name), Path(folder)
    labels, matches = _label_space(table, folder)
    known = _samples(table[KNOWN], folder, matches)
    unknown = {name: _samples(row, folder, None) for name, row in table["unknown"].items()}
    marked = tuple(name for name, row in table["unknown"].items() if row.get("unclean"))
    pool = _pool(known, unknown)
    return Suite(Source(name, folder), table["about"], labels, pool, table.get("paper", {}), marked)


def _table(name: str) -> dict[str, Any]:
    if name in names():
        return tomllib.loads((files(__package__) / f"{name}.toml").read_text())
    if not Path(name).is_file():
        raise DataError(
            f"expected a suite out of {', '.join(names())} or a TOML file, got {name!r}; check the spelling"
        )
    return tomllib.loads(Path(name).read_text())


def _label_space(table: Mapping[str, Any], folder: Path) -> tuple[LabelSpace, dict[str, int]]:
    """Return the label space and, for each class of the known images, its position among the known names."""
    known, rows = _text(table[KNOWN], folder)
    parts = [_text(row, folder) for row in table["negatives"]]
    names = _distinct([known.classes[row] for row in rows], set())
    negatives = _distinct([text.classes[row] for text, rows in parts for row in rows], set(names))
    labels = LabelSpace(
        tuple(names),
        tuple(negatives),
        known.z[rows],
        torch.cat([text.z[rows] for text, rows in parts]),
        prompt=known.metadata.get("template", ""),
        encoder=known.encoder,
    )
    keys = json.loads(known.metadata[table[KNOWN]["match"]]) if "match" in table[KNOWN] else range(len(known.z))
    return labels, {str(keys[row]): position for position, row in enumerate(rows)}


def _text(row: Mapping[str, Any], folder: Path) -> tuple[FeatureSet, list[int]]:
    text = FeatureSet.load(folder / f"{row['text']}.safetensors")
    return text, _listed(row["rows"], folder) if "rows" in row else list(range(len(text.z)))


def _samples(
    row: Mapping[str, Any], folder: Path, matches: Mapping[str, int] | None
) -> tuple[Tensor, Int[Tensor, " n"]]:
    """Return features with the position of each one's true name, -1 for unknown sets."""
    images = FeatureSet.load(folder / f"{row['images']}.safetensors")
    if matches is None:
        z = images.z
        if "classes" in row:
            z = z[torch.isin(images.true_labels, torch.tensor(_listed(row["classes"], folder)))]
        return z, torch.full((len(z),), -1)
    position = torch.tensor([matches.get(name, -1) for name in images.classes])[images.true_labels]
    return images.z[position >= 0], position[position >= 0]


def _pool(known: tuple[Tensor, Tensor], unknown: Mapping[str, tuple[Tensor, Tensor]]) -> Trial:
    parts = [known, *unknown.values()]
    return Trial(
        torch.cat([z for z, _ in parts]),
        torch.cat([label for _, label in parts]),
        torch.cat([torch.full((len(z),), source) for source, (z, _) in enumerate(parts)]),
        (KNOWN, *unknown),
    )


def _listed(reference: str | list[int], folder: Path) -> list[int]:
    """Return a list of indices written out, or found at `file.json#key/key` in the features' folder."""
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
    """Return names in which one that stood before gets a number: a label space wants each name once."""
    result: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({n})" for n in count(2))
        free = next(each for each in chain([name], numbered) if each not in result and each not in taken)
        result[free] = None
    return list(result)
