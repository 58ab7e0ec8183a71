"""A threshold from margins of images that are known to be known (split conformal prediction)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import SettingError
from unseen.labels import LabelSpace
from unseen.threshold.adaptive import Adaptive, MarginHistory
from unseen.threshold.base import FOLLOWS, Decisions, RecallInterval, ThresholdRule, check_recall
from unseen.threshold.fixed import Fixed
from unseen.threshold.mixture import PRIOR


class Calibration(NamedTuple):
    """What calibration with `images` known images gives."""

    images: int
    recall: float  # a new known image passes with at least this probability
    threshold: float
    low: float  # the share of known images that pass, over all that will come, lies between `low` and `high` in nine
    high: float  # of ten calibrations
    odd: tuple[int, ...] = ()  # images that lie far below the others and were left out


class CalibratedMargins(NamedTuple):
    """The margins of the calibration images, ascending, and how many images had been seen when they were scored."""

    stream: MarginHistory
    margins: Float[Tensor, " n"]
    at: Int[Tensor, ""]


@dataclass(frozen=True)
class Calibrated(ThresholdRule[CalibratedMargins]):
    """Guarantee a recall by images that are known to be known: a new one passes with probability at least `recall`.

    The conformal threshold is the k-th lowest margin of the calibration images, k = floor((n + 1)(1 - recall)). With
    few images it is their lowest margin, whatever that is. `p_known` follows the stream.

    >>> Calibrated(recall=0.9, images=200).settings["images"]
    200
    """

    recall: float = 0.95
    images: int = 0
    in_nats: bool = False  # set by the session from the detector
    known_mean: float = field(default=PRIOR.known_mean, compare=False, metadata=FOLLOWS)  # expected, by the label space

    name: ClassVar[str] = "calibrated"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_images(self.images, self.recall)

    @property
    def inner(self) -> Adaptive:
        """The rule that follows the stream."""
        return Adaptive(self.recall, in_nats=self.in_nats, known_mean=self.known_mean)

    def start(self) -> CalibratedMargins:
        """A state without calibration margins: `calibrated_state` has them."""
        margins = torch.full((self.images,), math.nan, dtype=torch.float64)
        return CalibratedMargins(self.inner.start(), margins, torch.tensor(0))

    def calibrated_state(self, before: Any, margins: Float[Tensor, " n"], *, at: int) -> CalibratedMargins:
        """The state after calibration at image `at`; `before` is the state of the rule until then."""
        ordered = margins.detach().double().cpu().sort().values
        return CalibratedMargins(self.inner.taken_over(stream_of(before)), ordered, torch.tensor(at))

    def threshold_of(self, state: CalibratedMargins) -> float:
        """The conformal threshold."""
        return float(state.margins[conformal_rank(self.images, self.recall) - 1])

    def recall_interval(self, state: CalibratedMargins) -> RecallInterval:
        """Where the share of known images that is kept lies in nine calibrations of ten."""
        return recall_interval(self.images, self.recall)

    def p_known(self, state: CalibratedMargins, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The p_known of the inner rule."""
        return self.inner.p_known(state.stream, margin)

    def learn(self, state: CalibratedMargins, margin: Float[Tensor, " T"]) -> tuple[Decisions, CalibratedMargins]:
        """The decisions about samples in arrival order, and the state after the last."""
        found, stream = self.inner.learn(state.stream, margin)
        threshold = torch.full_like(found.threshold, self.threshold_of(state))
        return Decisions(threshold, found.p_known, torch.zeros_like(found.warming)), state._replace(stream=stream)

    def judged_again(
        self, state: CalibratedMargins, before: MarginHistory, margin: Float[Tensor, " n"]
    ) -> CalibratedMargins:
        """The state in which `margin` are those of the images after `before`; the threshold stays."""
        return state._replace(stream=self.inner.judged_again(state.stream, before, margin))

    def moved(self, state: CalibratedMargins, by: float) -> CalibratedMargins:
        """The state in which all margins were higher by so many nats."""
        return state._replace(stream=self.inner.moved(state.stream, by), margins=state.margins + by)

    def for_detector(self, labels: LabelSpace, *, in_nats: bool) -> Calibrated:
        """This rule with the inner rule as it works best for the detector."""
        inner = self.inner.for_detector(labels, in_nats=in_nats)
        return replace(self, in_nats=in_nats, known_mean=inner.known_mean)


def stream_of(state: Any) -> MarginHistory | None:
    """What a state of a threshold rule knows of the stream, None of a fixed threshold."""
    state = state.stream if isinstance(state, CalibratedMargins) else state
    return state if isinstance(state, MarginHistory) else None


def followed(rule: ThresholdRule[Any], state: Any, recall: float, labels: LabelSpace) -> tuple[ThresholdRule[Any], Any]:
    """The rule that lets the stream, and what is told, set the threshold of a detector in nats, and its state."""
    now = replace(rule if isinstance(rule, Adaptive) else Adaptive(), recall=recall).for_detector(labels, in_nats=True)
    return now, (state if rule == now else now.taken_over(stream_of(state)))


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


def odd_images(margins: Float[Tensor, " n"], *, far_below: float = 3.5) -> Int[Tensor, " m"]:
    """Which images lie `far_below` deviations under the median, the lowest first: they look unlike their class."""
    margins = margins.detach().double().cpu()
    deviation = 1.4826 * (margins - margins.median()).abs().median()  # of a normal
    order = margins.argsort()
    return order[margins[order] < margins.median() - far_below * deviation.clamp(min=PRIOR.known_deviation)]


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
