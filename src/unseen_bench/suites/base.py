"""What a suite is: one label space, the known images, and the unknown sets they are tested against."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import DataError, SettingError
from unseen.labels import LabelSpace
from unseen_bench.trial import Trial

KNOWN = "known"


def names() -> list[str]:
    """The suites that come with the package."""
    return sorted(
        file.name.removesuffix(".toml") for file in files(__package__).iterdir() if file.name.endswith(".toml")
    )


def read(name: str) -> dict[str, Any]:
    """The table of a suite; one that `extends` another holds only the differences."""
    if name not in names() and not Path(name).is_file():
        raise DataError(
            f"expected a suite out of {', '.join(names())} or a TOML file, got {name!r}; check the spelling"
        )
    table = tomllib.loads((files(__package__) / f"{name}.toml" if name in names() else Path(name)).read_text())
    if "extends" not in table:
        return table
    base = read(table.pop("extends"))
    added: dict[str, Any] = {key: {**base[key], **table[key]} for key in ("labels", "unknown") if key in table}
    without = {key: value for key, value in base.items() if key not in ("paper", "published")}  # of one table
    return {**without, **table, **added}


def needs_images(name: str) -> bool:
    """Whether a suite reads images (--data) rather than feature files (--features)."""
    known = read(name)["known"]
    return "lists" in known or "folders" in known


def learned_file(name: str) -> str | None:
    """The file in the data root that holds the label space of a suite with learned prompts."""
    found: str | None = read(name).get("labels", {}).get("learned")
    return found


class Source(NamedTuple):
    """Where a suite comes from: enough for another process to load it again."""

    name: str
    folder: Path
    encoder: str | None = None  # what reads the images of `folder`; None where it holds feature files


class LabelledSamples(NamedTuple):
    """Features of one set with the position of each one's true name, -1 for unknown sets."""

    z: Float[Tensor, "n d"]
    label: Int[Tensor, " n"]

    @classmethod
    def unknown(cls, z: Float[Tensor, "n d"]) -> LabelledSamples:
        """Samples that belong to no known name."""
        return cls(z, torch.full((len(z),), -1))

    def thinned(self, most: int | None) -> LabelledSamples:
        """At most so many samples, drawn at random but always the same ones, in their order."""
        if most is None or len(self.z) <= most:
            return self
        drawn = torch.randperm(len(self.z), generator=torch.Generator().manual_seed(0))[:most].sort().values
        return LabelledSamples(self.z[drawn], self.label[drawn])


def groups_of(table: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Which sets a table averages, whether they are there or not."""
    groups: Mapping[str, Sequence[str]] = table.get("groups", {"average": tuple(table["unknown"])})
    return groups


@dataclass(frozen=True)
class Suite:
    """One label space, the known images, and the unknown sets they are tested against."""

    source: Source
    about: str
    labels: LabelSpace
    pool: Trial  # all samples: known ones first, then one unknown set after another
    table: Mapping[str, Any] = field(default_factory=dict)
    own_space: Callable[[str], LabelSpace | None] = lambda name: None  # of a method, where text can be encoded
    best_patches: Callable[[LabelSpace], Float[Tensor, "n d"]] | None = None  # of the pool's images, where it has any
    views: Callable[[], Float[Tensor, "n V d"]] | None = None  # random crops of the pool's images, where it has any
    noise: Callable[[], Float[Tensor, "n d"]] | None = None  # features of noise images, where they can be encoded

    def labels_of(self, method: str) -> LabelSpace:
        """The label space that a method reads: its own as published, or the one that all share."""
        return self.own_space(method) or self.labels

    def text_of(self, method: str) -> str:
        """Where a method's text comes from, for its row."""
        space = self.own_space(method)
        if space is None:
            return str(self.table.get("text", "as stored" if "labels" not in self.table else "of the suite"))
        return f"own: {space.prompt}, {len(space.negatives):,} negatives by {space.manifest.get('miner', 'hand')}"

    def published_settings(self, method: str) -> Mapping[str, Any]:
        """The settings that a method's authors publish for this suite and for no other."""
        return self.table.get("settings", {}).get(method, {})

    @classmethod
    def of(
        cls,
        source: Source,
        table: Mapping[str, Any],
        labels: LabelSpace,
        known: LabelledSamples,
        unknown: Mapping[str, LabelledSamples],
        **own: Any,
    ) -> Suite:
        """The suite whose pool is the known samples and then each unknown set."""
        parts = [known, *unknown.values()]
        pool = Trial(
            torch.cat([part.z for part in parts]),
            torch.cat([part.label for part in parts]),
            torch.cat([torch.full((len(part.z),), source) for source, part in enumerate(parts)]),
            (KNOWN, *unknown),
        )
        return cls(source, table["about"], labels, pool, table, **own)

    @property
    def name(self) -> str:
        """The suite's name."""
        return Path(self.source.name).stem

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the unknown sets."""
        return self.pool.sources[1:]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Which sets are averaged: near and far where the table says so, otherwise all of them.

        An average over fewer sets than the table has is called by their number: `average of 2`.
        """
        found = {}
        for name, sets in groups_of(self.table).items():
            present = tuple(one for one in sets if one in self.sets)
            if len(present) > 1:
                found[name if len(present) == len(sets) else f"{name} of {len(present)}"] = present
        return found

    @property
    def paper(self) -> Mapping[str, Any]:
        """Printed figures: method -> set -> [AUROC, FPR95], then their deviations over seeds where printed."""
        return self.table.get("paper", {})

    @property
    def fpr(self) -> str:
        """The convention of FPR95 that this benchmark's own tables follow."""
        return str(self.table.get("fpr", "fpr95_id"))

    @property
    def unclean(self) -> tuple[str, ...]:
        """The sets known to contain images of known classes."""
        return tuple(name for name in self.sets if self.table["unknown"][name].get("unclean"))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every feature and of the truth about it."""
        digest = hashlib.sha256(repr(self.pool.sources).encode())
        for part in (self.pool.z, self.pool.label, self.pool.source):
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def has_parts(self, parts: str) -> bool:
        """Whether it can give what a detector reads besides the vector of an image: patches, views, nothing."""
        return {"patches": self.best_patches, "views": self.views}.get(parts, parts) is not None

    def with_parts(self, parts: str, labels: LabelSpace) -> Suite:
        """The suite with [n, 1 + P, d] features: the image and the patch that is surest of a name, or views."""
        if not self.has_parts(parts):
            raise SettingError(
                f"expected a suite over images for a detector of {parts}, got {self.name!r}, which has features of "
                f"whole images; use --data, with an encoder that gives {parts}"
            )
        if parts == "patches":
            assert self.best_patches is not None
            added = self.best_patches(labels).unsqueeze(1)
        else:
            assert self.views is not None
            added = self.views()
        z = torch.cat([self.pool.z.unsqueeze(1), added], dim=1)
        return replace(self, pool=replace(self.pool, z=z))

    def against(self, *sets: str) -> Trial:
        """The known samples and the given unknown sets, not yet in any order."""
        chosen = torch.tensor([0, *(self.pool.sources.index(name) for name in sets)])
        return self.pool[torch.isin(self.pool.source, chosen).nonzero().squeeze(1)]
