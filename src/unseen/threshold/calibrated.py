"""A threshold from margins of images that are known to be known (split conformal prediction)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.adaptive import Adaptive
from unseen.threshold.base import Decisions, RecallInterval, ThresholdRule, check_recall
from unseen.threshold.fixed import Fixed

BASES: dict[str, type[ThresholdRule[Any]]] = {kind.name: kind for kind in (Adaptive, Fixed)}


class Calibration(NamedTuple):
    """What calibration with `images` known images gives."""

    images: int
    recall: float  # a new known image passes with at least this probability
    threshold: float  # the highest margin of which that is true
    low: float  # the share of known images that pass, over all that will come, lies between `low` and `high` in nine
    high: float  # of ten calibrations


class CalibratedMargins(NamedTuple):
    """The margins of the calibration images, ascending, and how many images had been seen when they were scored."""

    stream: Any  # the state of the rule that follows the stream
    margins: Float[Tensor, " n"]
    at: Int[Tensor, ""]


@dataclass(frozen=True)
class Calibrated(ThresholdRule[CalibratedMargins]):
    """Set the threshold by images that are known to be known; with few of them the stream may lower it.

    The conformal threshold is the k-th lowest margin of the calibration images, k = floor((n + 1)(1 - recall)): a new
    known image passes with probability at least `recall`. Where the rule `base` sets a lower one from the stream, that
    counts as much as one image: the threshold is the mean of k times the first and once the second. So it is never
    above the conformal one, and the guarantee holds.

    >>> Calibrated(recall=0.9, images=200).settings["images"]
    200
    """

    recall: float = 0.95
    images: int = 0
    base: str = Adaptive.name
    base_settings: Mapping[str, Any] = field(default_factory=dict)

    name: ClassVar[str] = "calibrated"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_images(self.images, self.recall)
        if self.base not in BASES:
            raise SettingError(f"expected a base out of {', '.join(BASES)}, got {self.base!r}; leave it out")

    @classmethod
    def of(cls, rule: ThresholdRule[Any], *, recall: float, images: int) -> Calibrated:
        """The rule that bounds `rule`; one that aims at a recall then aims at this one."""
        rule = rule.inner if isinstance(rule, Calibrated) else rule
        rule = replace(rule, recall=recall) if isinstance(rule, Adaptive) else rule
        return cls(recall, images, rule.name, rule.settings)

    @cached_property
    def inner(self) -> ThresholdRule[Any]:
        """The rule that follows the stream."""
        return BASES[self.base](**self.base_settings)

    def start(self) -> CalibratedMargins:
        """A state without calibration margins: `calibrated_state` has them."""
        margins = torch.full((self.images,), math.nan, dtype=torch.float64)
        return CalibratedMargins(self.inner.start(), margins, torch.zeros((), dtype=torch.int64))

    def calibrated_state(self, stream: Any, margins: Float[Tensor, " n"], *, at: int) -> CalibratedMargins:
        """The state after calibration at image `at`; `stream` is the state of the inner rule."""
        ordered = margins.detach().double().cpu().sort().values
        return CalibratedMargins(stream, ordered, torch.tensor(at))

    def threshold_of(self, state: CalibratedMargins) -> float:
        """The conformal threshold, lowered where that of the stream is lower."""
        return float(self._combined(state, torch.tensor(self.inner.threshold_of(state.stream), dtype=torch.float64)))

    def _combined(self, state: CalibratedMargins, stream: Float[Tensor, "*T"]) -> Float[Tensor, "*T"]:
        if bool(state.margins.isnan().any()):  # not calibrated yet
            return stream
        rank = conformal_rank(self.images, self.recall)
        conformal = state.margins[rank - 1].to(stream.dtype)
        return torch.where(stream < conformal, (rank * conformal + stream) / (rank + 1), conformal)

    def recall_interval(self, state: CalibratedMargins) -> RecallInterval | None:
        """Where the share of known images that is kept lies in nine calibrations of ten."""
        if bool(state.margins.isnan().any()):
            return self.inner.recall_interval(state.stream)
        return recall_interval(self.images, self.recall)

    def p_known(self, state: CalibratedMargins, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The p_known of the inner rule."""
        return self.inner.p_known(state.stream, margin)

    def learn(
        self,
        state: CalibratedMargins,
        margin: Float[Tensor, " T"],
        clarity: Float[Tensor, " T"] | None = None,
    ) -> tuple[Decisions, CalibratedMargins]:
        """The decisions about samples in arrival order, and the state after the last."""
        found, stream = self.inner.learn(state.stream, margin, clarity)
        threshold = self._combined(state, found.threshold)
        return Decisions(threshold, found.p_known, torch.zeros_like(found.warming)), state._replace(stream=stream)

    def for_detector(self, *, derives_baseline: bool) -> Calibrated:
        """This rule with the inner rule as it works best for the detector."""
        inner = self.inner.for_detector(derives_baseline=derives_baseline)
        return replace(self, base_settings=inner.settings)


class ByExamples(Calibrated):
    """The same by the examples that a label space spares: a session calibrates itself again as its stream grows."""

    name: ClassVar[str] = "examples"


def calibrated(known_margins: Float[Tensor, " n"], *, recall: float = 0.95) -> Fixed:
    """The highest threshold that a new known image passes with probability at least `recall`.

    With n held-out margins of known images the threshold is the k-th smallest, k = floor((n + 1)(1 - recall)). This
    holds at every n, where the plain quantile is slightly too high.
    """
    check_images(len(known_margins), recall)
    rank = conformal_rank(len(known_margins), recall)
    return Fixed(float(known_margins.double().sort().values[rank - 1]))


def calibration(known_margins: Float[Tensor, " n"], *, recall: float = 0.95) -> Calibration:
    """What these margins of known images give."""
    images = len(known_margins)
    threshold = calibrated(known_margins, recall=recall).threshold
    return Calibration(images, recall, threshold, *recall_interval(images, recall))


def fewest_images(recall: float) -> int:
    """How many known images a recall needs: 19 for 0.95."""
    check_recall(recall)
    return math.ceil(1 / (1 - recall) - 1 - 1e-9)


def check_images(images: int, recall: float) -> None:
    """Refuse fewer known images than a recall needs."""
    if images < (least := fewest_images(recall)):
        raise SettingError(
            f"expected at least {least} known images for a recall of {recall:g}, got {images}; "
            + (f"add known images, or aim at a recall of at most {images / (images + 1):.3g}" if images else "add them")
        )


def conformal_rank(images: int, recall: float) -> int:
    """Which of the margins, from the lowest, a new known image passes with probability at least `recall`."""
    return math.floor((images + 1) * (1 - recall) + 1e-9)  # two decimals may fall just short of an integer


def recall_interval(images: int, recall: float, *, level: float = 0.9) -> RecallInterval:
    """Where the true recall of a calibrated threshold lies in a share `level` of calibrations.

    The true recall of the threshold at rank k follows a Beta distribution with n + 1 - k and k.
    """
    rank, tail = conformal_rank(images, recall), (1 - level) / 2
    return RecallInterval(_recall_quantile(images, rank, tail), _recall_quantile(images, rank, 1 - tail))


def suspects(
    margins: Float[Tensor, " n"], *, threshold: float, recall: float, unlikely: float = 0.05, far_below: float = 4.5
) -> Int[Tensor, " m"]:
    """Which calibration images look unknown, the lowest first.

    These are the images below `threshold`, that of the stream, if chance puts so many known ones there with a
    probability under `unlikely`; otherwise those `far_below` deviations under the median.
    """
    margins = margins.detach().double().cpu()
    below = int((margins < threshold).sum())
    by_chance = 1 - math.fsum(_binomial(len(margins), k, 1 - recall) for k in range(below))
    if by_chance >= unlikely:
        deviation = 1.4826 * (margins - margins.median()).abs().median()  # of a normal
        threshold = float(margins.median() - far_below * deviation)
    order = margins.argsort()
    return order[margins[order] < threshold]


def _recall_quantile(images: int, rank: int, probability: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        below = math.fsum(_binomial(images, k, 1 - middle) for k in range(rank))  # that the true recall is under it
        low, high = (middle, high) if below < probability else (low, middle)
    return (low + high) / 2


def _binomial(n: int, k: int, p: float) -> float:
    """The probability of k successes of n."""
    if not 0 < p < 1:
        return float(k == (n if p >= 1 else 0))
    logs = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(logs + k * math.log(p) + (n - k) * math.log1p(-p))
