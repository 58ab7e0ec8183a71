"""A bounded sample of the images a session has judged: what explanations, groups and promotions work on.

Of the unknown images it keeps the latest, and a uniform sample of all before them; of the known images an eighth as
many. Which image is kept depends on its place in the stream only, so the division into calls changes nothing. Vectors
are kept in half precision.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import SettingError, StateError
from unseen.verdicts import Verdicts

UNKNOWN = 8192  # unknown images that are kept
KNOWN_SHARE = 8  # one known image is kept for so many unknown ones


@dataclass(frozen=True, eq=False)
class KeptImages:
    """Images with what was decided about them, in order of arrival."""

    z: Float[Tensor, "n d"]  # unit, half precision
    place: Int[Tensor, " n"]  # in the stream, from 0
    margin: Float[Tensor, " n"]
    label: Int[Tensor, " n"]  # the nearest name
    known: Bool[Tensor, " n"]
    group: Int[Tensor, " n"]  # number of the group, 0 for none; numbers are given by unseen.discover
    keys: tuple[str, ...]  # "" where the caller gave none

    @classmethod
    def none(cls, dim: int) -> KeptImages:
        """No images of a width."""
        whole = torch.zeros(0, dtype=torch.int64)
        return cls(torch.zeros(0, dim, dtype=torch.float16), whole, torch.zeros(0), whole, whole.bool(), whole, ())

    def __len__(self) -> int:
        return len(self.z)

    def select(self, rows: Int[Tensor, " m"] | Bool[Tensor, " n"]) -> KeptImages:
        """Some of the images, by number or by mask."""
        rows = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        chosen = {name: getattr(self, name).index_select(0, rows) for name in COLUMNS}  # faster than brackets
        return KeptImages(**chosen, keys=tuple(self.keys[row] for row in rows.tolist()))

    @classmethod
    def judged(cls, z: Float[Tensor, "n d"], verdicts: Verdicts, start: int, keys: Sequence[str]) -> KeptImages:
        """Consecutive images of a stream, the first at place `start`, with what was decided about them."""
        copied = torch.empty(z.shape, dtype=torch.float16).copy_(z.detach())
        place = torch.arange(start, start + len(z))
        known = ~verdicts.unknown
        return cls(copied, place, verdicts.margin.float(), verdicts.label, known, torch.zeros_like(place), tuple(keys))

    @classmethod
    def joined(cls, parts: Sequence[KeptImages]) -> KeptImages:
        """Consecutive images as one."""
        columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS}
        return cls(**columns, keys=tuple(chain.from_iterable(part.keys for part in parts)))

    @cached_property
    def features(self) -> Float[Tensor, "n d"]:
        """Exactly unit vectors in single precision."""
        return normalize(self.z.float(), dim=-1)

    @cached_property
    def mean(self) -> Float[Tensor, " d"]:
        """The mean image."""
        return self.features.mean(0)

    def names(self) -> list[str]:
        """What to call each image: its key, or its number in the stream, from 1."""
        return [key or f"#{place + 1}" for key, place in zip(self.keys, self.place.tolist(), strict=True)]

    def tensors(self) -> dict[str, Tensor]:
        """The columns as tensors, keys as UTF-8."""
        encoded = [key.encode() for key in self.keys]
        ends = np.cumsum([len(key) for key in encoded], dtype=np.int64)
        text = np.frombuffer(b"".join(encoded), dtype=np.uint8).copy()
        columns = {name: getattr(self, name) for name in COLUMNS}
        return columns | {"key_bytes": torch.from_numpy(text), "key_ends": torch.from_numpy(ends)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> KeptImages:
        """The images that `tensors` describes."""
        like, count = cls.none(tensors["z"].shape[-1]), len(tensors["z"])
        for name in COLUMNS:
            column, kind = tensors[name], getattr(like, name)
            if (column.dtype, column.shape) != (kind.dtype, (count, *kind.shape[1:])):
                raise ValueError(f"{name} of {column.dtype} and shape {list(column.shape)}")
        if tensors["key_ends"].dtype != torch.int64 or len(tensors["key_ends"]) != count:
            raise ValueError("no key for each image")
        text, ends = tensors["key_bytes"].numpy().tobytes(), tensors["key_ends"].tolist()
        keys = tuple(text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False))
        return cls(**{name: tensors[name].clone() for name in COLUMNS}, keys=keys)


COLUMNS = tuple(one.name for one in fields(KeptImages) if one.name != "keys")


@dataclass(frozen=True, eq=False)
class Reservoir:
    """What is kept of a stream, as one value: a reader that holds it sees no later image."""

    kept: KeptImages
    unknown: int = UNKNOWN  # most unknown images
    since: int = 0  # place in the stream before which nothing was kept: the state had no reservoir
    next_group: int = 1
    dismissed: tuple[int, ...] = ()  # numbers of groups that are not to be shown
    journal: tuple[Mapping[str, Any], ...] = ()  # what people changed, as unseen.discover wrote it
    recent: tuple[KeptImages, ...] = field(default=(), repr=False)  # of the latest calls, not yet among the others
    intake: int = 2048  # images after which those that are not to be kept are dropped

    @classmethod
    def empty(cls, dim: int, *, unknown: int = UNKNOWN) -> Reservoir:
        """A reservoir without an image."""
        if unknown < 0:
            raise SettingError(f"expected to keep at least 0 images, got {unknown}; 0 keeps none")
        return cls(KeptImages.none(dim), unknown)

    def after(self, z: Float[Tensor, "T d"], verdicts: Verdicts, start: int, keys: Sequence[str] = ()) -> Reservoir:
        """The reservoir after more images; `start` is the place of the first in the stream."""
        count = z.shape[0]
        if not self.unknown or not count:
            return self
        z = z[:, 0] if z.ndim == 3 else z  # without patches
        more = KeptImages.judged(z, verdicts, start, keys or ("",) * count)
        longer = replace(self, recent=(*self.recent, more))
        is_full = start + count - int(longer.recent[0].place[0]) >= self.intake
        return longer.with_recent() if is_full else longer

    def with_recent(self) -> Reservoir:
        """The reservoir with its latest images among the others and without those that are not to be kept."""
        if not self.recent:
            return self
        whole = KeptImages.joined((self.kept, *self.recent))
        place, known, most = whole.place.numpy(), whole.known.numpy(), self.unknown
        keeps = kept_places(place, ~known, most) | kept_places(place, known, most // KNOWN_SHARE)
        return replace(self, kept=whole.select(torch.from_numpy(keeps)), recent=())

    @cached_property
    def images(self) -> KeptImages:
        """Every image that is kept now."""
        return self.with_recent().kept

    @property
    def corrections(self) -> dict[str, str]:
        """The latest word of a person on each image, undone ones left out."""
        undone = {one.get("undone") for one in self.journal}
        found: dict[str, str] = {}
        for one in self.journal:
            if one["verb"] == "correct" and one["edit"] not in undone:
                found |= one["corrections"]
        return found

    def corrected(self, names: Sequence[str]) -> tuple[Float[Tensor, "n d"], Bool[Tensor, " n"]]:
        """The kept images that a person has corrected, and which of them show one of the names."""
        words, known = self.corrections, set(names)
        if not words:
            return torch.zeros(0, self.kept.z.shape[1]), torch.zeros(0, dtype=torch.bool)
        called = self.images.names()
        rows = torch.tensor([key in words for key in called], dtype=torch.bool)
        is_known = [words[key] in known for key in called if key in words]
        return self.images.features[rows], torch.tensor(is_known, dtype=torch.bool)

    def rejudged(self, verdicts: Verdicts, start: int) -> Reservoir:
        """The reservoir with other verdicts on the images from place `start` on."""
        images = self.images
        rows = (images.place >= start) & (images.place < start + len(verdicts))
        if not bool(rows.any()):
            return self
        found = verdicts.select(images.place[rows] - start)
        columns = {"margin": found.margin, "label": found.label, "known": ~found.unknown}
        changed = {
            name: getattr(images, name).index_put((rows,), column.to(getattr(images, name)))
            for name, column in columns.items()
        }
        group = images.group.masked_fill(changed["known"], 0)
        return self.with_images(replace(images, **changed, group=group))

    def with_images(self, images: KeptImages, **changes: object) -> Reservoir:
        """The reservoir with other columns for the same images."""
        return replace(self, kept=images, recent=(), **changes)  # type: ignore[arg-type]

    @property
    def byte_limit(self) -> int:
        """The most bytes that vectors and numbers can take; keys come besides."""
        row = self.kept.z.shape[1] * 2 + sum(getattr(self.kept, name).element_size() for name in COLUMNS[1:])
        return (self.unknown + self.unknown // KNOWN_SHARE + self.intake) * row

    def tensors(self) -> dict[str, Tensor]:
        """Everything as tensors, as a state file holds it."""
        numbers = torch.tensor([self.unknown, self.since, self.next_group])
        whole = self.with_recent()
        text = np.frombuffer(json.dumps(self.journal).encode(), dtype=np.uint8).copy()
        more = {"numbers": numbers, "dismissed": torch.tensor(self.dismissed).long(), "journal": torch.from_numpy(text)}
        return whole.kept.tensors() | more

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Reservoir:
        """The reservoir that `tensors` describes; refuse what no session has written."""
        try:
            unknown, since, next_group = (operator.index(number) for number in tensors["numbers"].tolist())
            dismissed = tuple(operator.index(number) for number in tensors["dismissed"].tolist())
            journal = tuple(json.loads(tensors["journal"].numpy().tobytes()))
            if min(unknown, since, next_group) < 0 or any({"edit", "verb"} - one.keys() for one in journal):
                raise ValueError("negative counts, or edits without a number")
            return cls(KeptImages.of_tensors(tensors), unknown, since, next_group, dismissed, journal)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise StateError(f"expected the kept images of a session, got {error}; pass the right file") from error


def kept_places(place: np.ndarray, among: np.ndarray, count: int) -> np.ndarray:
    """Which images of `among` are kept: the latest half of `count`, and of those before a uniform sample."""
    rows = np.flatnonzero(among)
    keeps = np.zeros(len(place), dtype=bool)
    if len(rows) <= count:
        keeps[rows] = True
        return keeps
    latest = count - count // 2
    older = rows[: len(rows) - latest]
    keeps[rows[len(rows) - latest :]] = True
    sampled = count // 2  # no two places have the same number, so which ones have the lowest needs no order
    keeps[older[np.argpartition(_scrambled(place[older]), sampled)[:sampled]]] = True
    return keeps


def _scrambled(place: np.ndarray) -> np.ndarray:
    """A pseudo-random number for each place, always the same one: the mixer of splitmix64."""
    x = (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
