"""A stream in progress: a detector, a threshold, and one snapshot that is swapped whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen import checkpoint, detectors, threshold
from unseen.detectors import Detector, Reading
from unseen.errors import StateError
from unseen.labels import LabelSpace
from unseen.threshold import Adaptive, Cuts, Threshold


class Verdict(NamedTuple):
    """What is said of one image: a known name, or None for unknown."""

    name: str | None
    known: bool
    score: float  # log-odds above even: what the line is drawn on
    confidence: float  # its sigmoid
    warming: bool = False  # too little seen for the threshold to mean what it says


@dataclass(frozen=True)
class Verdicts(Sequence[Verdict]):
    """Verdicts of consecutive samples, kept as columns; indexing gives one."""

    names: tuple[str, ...]
    reading: Reading
    cuts: Cuts

    @property
    def margin(self) -> Float[Tensor, " T"]:
        """Return each score's distance from even odds: what lines are drawn on."""
        return margin(self.reading)

    @property
    def known(self) -> Bool[Tensor, " T"]:
        """Return which samples are at or above the line."""
        return self.margin >= self.cuts.cut

    @property
    def confidence(self) -> Float[Tensor, " T"]:
        """Return the sigmoid of each margin."""
        return torch.sigmoid(self.margin)

    def __len__(self) -> int:
        return len(self.reading.score)

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> list[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | list[Verdict]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        known, label, score, confidence, warming = (column[index] for column in self._columns)
        return Verdict(self.names[label] if known else None, known, score, confidence, warming)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[i] for i in range(len(self)))

    @cached_property
    def _columns(self) -> tuple[list[Any], ...]:
        # once: a column per verdict would make reading them all quadratic
        columns = self.known, self.reading.label, self.margin, self.confidence, self.cuts.warming
        return tuple(column.tolist() for column in columns)

    def __repr__(self) -> str:
        return f"Verdicts({int(self.known.sum())} known, {int((~self.known).sum())} unknown)"


class Tally(NamedTuple):
    """How many samples were observed, accepted, and taught each side."""

    seen: Tensor
    known: Tensor
    taught_known: Tensor
    taught_unknown: Tensor


class Snapshot(NamedTuple):
    """Everything a session has learned, as one value."""

    detector: Any
    threshold: Any
    tally: Tally


class Session:
    """Hold the state of one stream. One thread may observe; any number may score meanwhile and see whole snapshots."""

    def __init__(self, detector: Detector[Any], threshold: Threshold[Any] | None = None) -> None:
        self.detector = detector
        self.threshold = (threshold or Adaptive()).suited(anchored=detector.derives_even)
        zero = torch.zeros((), dtype=torch.int64)
        self.snapshot = Snapshot(detector.start(), self.threshold.start(), Tally(zero, zero, zero, zero))

    def __repr__(self) -> str:
        return f"Session({self.detector.name}, {self.detector.labels!r}, seen={int(self.snapshot.tally.seen)})"

    def observe(self, z: Float[Tensor, "T d"]) -> Verdicts:
        """Learn from features in arrival order and return a verdict for each."""
        before = self.snapshot
        reading, state = self.detector.observe(before.detector, z)
        reading = reading.cpu()  # verdicts are for the host; until here a GPU was not waited for
        cuts, line = self.threshold.learn(before.threshold, margin(reading))
        verdicts = Verdicts(self.detector.labels.names, reading, cuts)
        self.snapshot = Snapshot(state, line, _added(before.tally, verdicts))
        return verdicts

    def score(self, z: Float[Tensor, "T d"]) -> Verdicts:
        """Return verdicts without learning anything."""
        snapshot = self.snapshot
        reading = self.detector.score(snapshot.detector, z).cpu()
        return Verdicts(self.detector.labels.names, reading, self.threshold.read(snapshot.threshold, margin(reading)))

    @property
    def line(self) -> float:
        """Return the margin at and above which a sample is now called known."""
        return self.threshold.line(self.snapshot.threshold)

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file, whole or not at all."""
        checkpoint.save(path, self.snapshot._asdict(), self.identity)

    @classmethod
    def load(cls, path: str | Path, labels: LabelSpace, *, detector: Detector[Any] | None = None) -> Session:
        """Go on where `save` stopped; refuse a state that belongs to another label space or detector.

        A registered detector is rebuilt from the file; pass `detector` for one of your own.
        """
        states, identity = checkpoint.load(path)
        checkpoint.agree(
            "label space", labels.fingerprint, identity["labels"], "load the label space this state was learned with"
        )
        if detector is None:
            detector = detectors.make(identity["detector"], labels, **identity["settings"])
        session = cls(detector, threshold.REGISTRY[identity["threshold"]](**identity["threshold_settings"]))
        session.resume(states, identity)
        return session

    def resume(self, states: dict[str, dict[str, Tensor]], identity: dict[str, Any]) -> None:
        """Take over the states of a checkpoint that belongs to this session's detector and threshold."""
        for what, value in self.identity.items():
            checkpoint.agree(what, value, identity.get(what), "use the settings the state was learned with")
        fresh = self.snapshot._asdict()
        if unknown := states.keys() - fresh.keys():
            raise StateError(f"expected states {sorted(fresh)}, got {sorted(unknown)} besides; pass the right file")
        parts = {name: checkpoint.restored(start, states.get(name, {})) for name, start in fresh.items()}
        self.snapshot = Snapshot(**parts)

    @property
    def identity(self) -> dict[str, Any]:
        """Return what a state must agree on to be this session's."""
        return {
            "labels": self.detector.labels.fingerprint,
            "detector": self.detector.name,
            "settings": self.detector.settings,
            "threshold": self.threshold.name,
            "threshold_settings": self.threshold.settings,
        }


def margin(reading: Reading) -> Float[Tensor, " T"]:
    """Return how far each score is above that of a sample of which nothing is known."""
    return reading.score - reading.even


def _added(tally: Tally, verdicts: Verdicts) -> Tally:
    route = verdicts.reading.route
    return Tally(
        tally.seen + len(verdicts),
        tally.known + verdicts.known.sum().cpu(),
        tally.taught_known + (route > 0).sum().cpu(),
        tally.taught_unknown + (route < 0).sum().cpu(),
    )
