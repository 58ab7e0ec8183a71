"""What a suite is: one label space, the known images, and the unknown sets they are tested against."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.trial import Trial

KNOWN = "known"


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
        """Return samples that belong to no known name."""
        return cls(z, torch.full((len(z),), -1))


@dataclass(frozen=True)
class Suite:
    """One label space, the known images, and the unknown sets they are tested against."""

    source: Source
    about: str
    labels: LabelSpace
    pool: Trial  # all samples: known ones first, then one unknown set after another
    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        source: Source,
        table: Mapping[str, Any],
        labels: LabelSpace,
        known: LabelledSamples,
        unknown: Mapping[str, LabelledSamples],
    ) -> Suite:
        """Return the suite whose pool is the known samples and then each unknown set."""
        parts = [known, *unknown.values()]
        pool = Trial(
            torch.cat([part.z for part in parts]),
            torch.cat([part.label for part in parts]),
            torch.cat([torch.full((len(part.z),), source) for source, part in enumerate(parts)]),
            (KNOWN, *unknown),
        )
        return cls(source, table["about"], labels, pool, table)

    @property
    def name(self) -> str:
        """Return the suite's name."""
        return Path(self.source.name).stem

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the names of the unknown sets."""
        return self.pool.sources[1:]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return which sets are averaged: near and far where the table says so, otherwise all of them."""
        chosen: Mapping[str, Sequence[str]] = self.table.get("groups", {"average": self.sets})
        present = {name: tuple(one for one in sets if one in self.sets) for name, sets in chosen.items()}
        return {name: sets for name, sets in present.items() if len(sets) > 1}

    @property
    def paper(self) -> Mapping[str, Any]:
        """Return printed figures: method -> set -> [AUROC, FPR95]."""
        return self.table.get("paper", {})

    @property
    def fpr(self) -> str:
        """Return the convention of FPR95 that this benchmark's own tables follow."""
        return str(self.table.get("fpr", "fpr95_id"))

    @property
    def unclean(self) -> tuple[str, ...]:
        """Return the sets known to contain images of known classes."""
        return tuple(name for name in self.sets if self.table["unknown"][name].get("unclean"))

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of every feature and of the truth about it."""
        digest = hashlib.sha256(repr(self.pool.sources).encode())
        for part in (self.pool.z, self.pool.label, self.pool.source):
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def against(self, *sets: str) -> Trial:
        """Return the known samples and the given unknown sets, not yet in any order."""
        chosen = torch.tensor([0, *(self.pool.sources.index(name) for name in sets)])
        return self.pool[torch.isin(self.pool.source, chosen).nonzero().squeeze(1)]
