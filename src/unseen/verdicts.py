"""One table of verdicts: rows, records, columns, pandas. Python, files and HTTP use the same words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from unseen.detectors import DetectorOutput
from unseen.errors import import_extra
from unseen.labels import LabelSpace
from unseen.threshold import Decisions

VerdictArray = np.ndarray[tuple[int], np.dtype[np.void]]

# The numbers of one verdict, as the service keeps them in memory and in its journal
VERDICT_DTYPE = np.dtype(
    [
        ("score", "<f8"),
        ("margin", "<f8"),
        ("p_known", "<f8"),
        ("threshold", "<f8"),
        ("label", "<i4"),
        ("negative", "<i4"),
        ("route", "i1"),
        ("known", "?"),  # at or above the threshold: known or doubtful
        ("warming", "?"),
    ]
)
KNOWN, DOUBTFUL, UNKNOWN = VERDICTS = ("known", "doubtful", "unknown")
FIELDS = ("key", "verdict", "name", "nearest", "margin", "threshold", "p_known", "warming", "likely")  # of one record


class Verdict(NamedTuple):
    """What is decided about one image.

    >>> Verdict("known", "cat", margin=3.1, p_known=0.96, nearest="cat", threshold=0.4).name
    'cat'
    """

    verdict: str  # known, doubtful (above the threshold, but more likely unknown than known) or unknown
    name: str | None  # the known name, None for an unknown image
    margin: float  # score - baseline, in nats
    p_known: float  # probability that the image is known
    nearest: str  # the most likely known name, also of an unknown image
    threshold: float  # the margin from which an image is not called unknown
    warming: bool = False  # True while too few images have been seen for the threshold to be reliable
    likely: str | None = None  # the nearest negative: what an image that is not known may be

    @property
    def known(self) -> bool:
        """Whether the image is called known."""
        return self.verdict == KNOWN

    @property
    def unknown(self) -> bool:
        """Whether the image is called unknown."""
        return self.verdict == UNKNOWN

    @property
    def why(self) -> str:
        """The reason in one sentence; `unseen.discover.explain` adds words, negatives and similar images.

        >>> print(Verdict("unknown", None, -2.0, p_known=0.25, nearest="cat", threshold=0.4, likely="lynx").why)
        unknown, perhaps lynx: nearest to cat, but 2.4 below the threshold; known with a probability of 25 %
        """
        away = f"{abs(self.margin - self.threshold):.1f}"
        sure = f"known with a probability of {100 * self.p_known:.0f} %" + (
            ", the threshold is young" if self.warming else ""
        )
        verdict = self.verdict if self.likely is None else f"{self.verdict}, perhaps {self.likely}"
        if self.unknown:
            return f"{verdict}: nearest to {self.nearest}, but {away} below the threshold; {sure}"
        return f"{verdict}: {self.name}, {away} above the threshold; {sure}"


@dataclass(frozen=True, eq=False)
class Verdicts(Sequence[Verdict]):
    """Verdicts of consecutive samples, kept as columns; indexing gives one.

    >>> from unseen import Session, demo
    >>> verdicts = Session(demo.load().space).observe(demo.load().z[:4])
    >>> verdicts[2].name, len(verdicts), verdicts.margin.shape
    ('bird', 4, torch.Size([4]))
    """

    names: tuple[str, ...]
    negatives: tuple[str, ...]
    score: Float[Tensor, " T"]  # what the detector returned
    label: Int[Tensor, " T"]  # the index of the most likely known name
    route: Int8[Tensor, " T"]  # +1: taught the known side, -1: the unknown side, 0: nothing
    baseline: Float[Tensor, " T"]  # the score of an image related to no name
    negative: Int[Tensor, " T"]  # the index of the nearest negative, -1 where the detector has none
    threshold: Float[Tensor, " T"]  # that each sample met
    p_known: Float[Tensor, " T"]  # the probability that it is known
    warming: Bool[Tensor, " T"]  # whether its threshold was not reliable yet

    @classmethod
    def of(cls, labels: LabelSpace, output: DetectorOutput, decisions: Decisions) -> Verdicts:
        """What a rule decides on the output of a detector over a label space."""
        return cls(labels.names, labels.negatives, *output, *decisions)

    @classmethod
    def joined(cls, parts: Sequence[Verdicts]) -> Verdicts:
        """Consecutive verdicts over the same names as one table."""
        if len(parts) == 1:
            return parts[0]
        columns = map(torch.cat, zip(*(part.tensors for part in parts), strict=True))
        return cls(parts[0].names, parts[0].negatives, *columns)

    def select(self, rows: Int[Tensor, " n"]) -> Verdicts:
        """The verdicts on some samples."""
        return Verdicts(self.names, self.negatives, *(column[rows] for column in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The columns, as the table is made of them."""
        return *self.output, self.threshold, self.p_known, self.warming

    @property
    def output(self) -> DetectorOutput:
        """What the detector returned, without what was decided."""
        return DetectorOutput(self.score, self.label, self.route, self.baseline, self.negative)

    @cached_property
    def margin(self) -> Float[Tensor, " T"]:
        """Score - baseline."""
        return self.score - self.baseline

    @cached_property
    def unknown(self) -> Bool[Tensor, " T"]:
        """Which samples have no margin that reaches their threshold."""
        return ~(self.margin >= self.threshold)

    @property
    def doubtful(self) -> Bool[Tensor, " T"]:
        """Which samples are not below it, but more likely unknown than known."""
        return ~self.unknown & (self.p_known < 0.5)

    @property
    def known(self) -> Bool[Tensor, " T"]:
        """Which samples are neither unknown nor doubtful."""
        return ~self.unknown & (self.p_known >= 0.5)

    @property
    def counts(self) -> dict[str, int]:
        """How many samples have each verdict."""
        words = self.verdict
        return {word: words.count(word) for word in VERDICTS}

    def __len__(self) -> int:
        return len(self.score)

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> list[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | list[Verdict]:
        return self._rows[index]

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._rows)

    @cached_property
    def _rows(self) -> list[Verdict]:
        # once: a column per verdict would make reading them all quadratic
        words, names, nearest, likely = words_of(self.structured(), self.names, self.negatives)
        margin, p_known, threshold, warming = (
            column.tolist() for column in (self.margin, self.p_known, self.threshold, self.warming)
        )
        return list(map(Verdict, words, names, margin, p_known, nearest, threshold, warming, likely))

    def __repr__(self) -> str:
        return f"Verdicts({', '.join(f'{count} {word}' for word, count in self.counts.items())})"

    def structured(self) -> VerdictArray:
        """The numbers as one numpy structured array."""
        table = np.empty(len(self), VERDICT_DTYPE)
        for field in VERDICT_DTYPE.names or ():
            column = ~self.unknown if field == "known" else getattr(self, field)  # doubtful ones are known there
            table[field] = column.cpu().numpy()
        return table

    @property
    def name(self) -> list[str | None]:
        """The known name of each sample, None for an unknown one."""
        return [verdict.name for verdict in self._rows]

    @property
    def verdict(self) -> list[str]:
        """The verdict on each sample in a word."""
        return verdict_words(~self.unknown.cpu().numpy(), self.p_known.cpu().numpy())

    def columns(self, keys: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """The columns of FIELDS, one entry per sample, without `key` where no keys are given.

        NaN and infinity become None.
        """
        given = [None] * len(self) if keys is None else keys
        found = columns(self.structured(), self.names, self.negatives, given)
        return {name: column for name, column in found.items() if keys is not None or name != "key"}

    def records(self, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield one dict of FIELDS per sample; NaN and infinity become None.

        >>> from unseen import Session, demo
        >>> record, = Session(demo.load().space).score(demo.load().z[2:3]).records(["a.jpg"])
        >>> record["key"], record["verdict"], record["nearest"]
        ('a.jpg', 'known', 'bird')
        """
        return records(self.structured(), self.names, self.negatives, keys)

    def to_pandas(self, keys: Sequence[str] | None = None) -> Any:
        """A `pandas.DataFrame`, with a column `key` where keys are given.

        >>> from unseen import Session, demo
        >>> Session(demo.load().space).score(demo.load().z[:2]).to_pandas()["nearest"].tolist()
        ['bird', 'bird']
        """
        return import_extra("pandas", "tables").DataFrame(self.columns(keys))


class VerdictWords(NamedTuple):
    """What verdicts say in words, a column each."""

    verdict: list[str]
    name: list[str | None]
    nearest: list[str]
    likely: list[str | None]


def words_of(table: VerdictArray, names: Sequence[str], negatives: Sequence[str]) -> VerdictWords:
    """The words for the numbers in `table`: only what is unknown has no name, only what is known is nothing else."""
    words = verdict_words(table["known"], table["p_known"])
    nearest = [names[label] for label in table["label"].tolist()]
    name = [None if word == UNKNOWN else name for name, word in zip(nearest, words, strict=True)]
    places = table["negative"].tolist()
    likely = [
        None if word == KNOWN or place < 0 else negatives[place] for place, word in zip(places, words, strict=True)
    ]
    return VerdictWords(words, name, nearest, likely)


def columns(
    table: VerdictArray, names: Sequence[str], negatives: Sequence[str], keys: Sequence[str | None]
) -> dict[str, list[Any]]:
    """The columns of FIELDS for the numbers in `table`."""
    found: dict[str, list[Any]] = {"key": list(keys), **words_of(table, names, negatives)._asdict()}
    found |= {field: list(map(finite, table[field].tolist())) for field in ("margin", "threshold", "p_known")}
    found["warming"] = table["warming"].tolist()
    return {field: found[field] for field in FIELDS}


def verdict_words(passes: np.ndarray[Any, Any], p_known: np.ndarray[Any, Any]) -> list[str]:
    """The verdict in a word on samples that are or are not above the threshold."""
    return np.where(passes, np.where(p_known < 0.5, DOUBTFUL, KNOWN), UNKNOWN).tolist()


def records(
    table: VerdictArray, names: Sequence[str], negatives: Sequence[str], keys: Sequence[str | None]
) -> Iterator[dict[str, Any]]:
    """Yield one dict of FIELDS for each row of `table`."""
    found = columns(table, names, negatives, keys)
    return (dict(zip(FIELDS, row, strict=True)) for row in zip(*found.values(), strict=True))


def finite(number: float) -> float | None:
    """A number that JSON can hold: None for NaN and infinity."""
    return number if math.isfinite(number) else None
