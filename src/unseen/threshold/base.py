"""What a threshold rule is: a state, the threshold that follows from it, and a decision for each margin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.errors import SettingError
from unseen.labels import LabelSpace

S = TypeVar("S")
FOLLOWS = {"follows": True}  # of a field that follows from the label space: no setting that a checkpoint must agree on


class Decisions(NamedTuple):
    """What a rule decides about each sample."""

    threshold: Float[Tensor, " T"]  # a sample with this margin or more is called known
    p_known: Float[Tensor, " T"]  # probability that the sample is known
    warming: Bool[Tensor, " T"]  # True while too few margins have been seen for the threshold to be reliable

    @classmethod
    def joined(cls, parts: Iterable[Decisions]) -> Decisions:
        """The decisions about consecutive samples as one."""
        first, *rest = parts
        return cls(*map(torch.cat, zip(first, *rest, strict=True))) if rest else first


class Corrected(NamedTuple):
    """Margins of images whose verdict a person has corrected or confirmed."""

    margin: Float[Tensor, " n"]
    known: Bool[Tensor, " n"]


class RecallInterval(NamedTuple):
    """Where the share of the known images that a threshold keeps lies, in nine streams of ten."""

    low: float
    high: float


@dataclass(frozen=True)
class ThresholdRule(ABC, Generic[S]):
    """A rule that sets the threshold between known and unknown from margins.

    A state is None or a NamedTuple of tensors, never written to. Rules see no score, and no label but what is told.
    """

    name: ClassVar[str]

    @abstractmethod
    def start(self) -> S:
        """The state before the first margin."""

    @abstractmethod
    def threshold_of(self, state: S) -> float:
        """The margin from which a sample is now called known."""

    def recall_interval(self, state: S) -> RecallInterval | None:
        """What share of the known images the threshold keeps; None where the rule cannot tell."""
        return None

    def is_warming(self, state: S) -> bool:
        """Whether too few margins have been seen for the threshold to be reliable."""
        return False

    def p_known(self, state: S, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The probability that each sample is known: the sigmoid of its margin, which is log-odds."""
        return torch.sigmoid(margin)

    def read(self, state: S, margin: Float[Tensor, " T"]) -> Decisions:
        """The decisions about samples under the threshold as it is."""
        return Decisions(
            torch.full_like(margin, self.threshold_of(state)),
            self.p_known(state, margin),
            torch.full_like(margin, self.is_warming(state), dtype=torch.bool),
        )

    def learn(self, state: S, margin: Float[Tensor, " T"]) -> tuple[Decisions, S]:
        """The decisions about samples in arrival order, and the state after the last."""
        return self.read(state, margin), state

    def told(self, state: S, photos: Float[Tensor, " n"], corrected: Corrected) -> S:
        """The state after a person has told which images are known; these take the place of those told before."""
        return state

    def judged_again(self, state: S, before: Any, margin: Float[Tensor, " n"]) -> S:
        """The state in which `margin` are those of the images that came after `before`, in order.

        `before` is what the rule, or the rule at that time, knew of the stream.
        """
        return state

    def moved(self, state: S, by: float) -> S:
        """The state in which all margins were higher by so many nats: other names have another baseline."""
        return state

    def for_detector(self, labels: LabelSpace, *, in_nats: bool) -> Self:
        """The rule for a detector of these names, whose margins are in nats or are not."""
        return self

    @property
    def settings(self) -> dict[str, object]:
        """Every option by name: what a checkpoint must agree on."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata}


def check_recall(recall: float) -> None:
    """Refuse a recall that is not a share."""
    if not 0 < recall < 1:
        meant = f"write {recall / 100:g} for {recall:g} %" if 1 < recall < 100 else "0.95 is customary"
        raise SettingError(f"expected a recall between 0 and 1, got {recall!r}; {meant}")
