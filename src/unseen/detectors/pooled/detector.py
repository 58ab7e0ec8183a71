"""The default: pool the frozen evidence of images that look alike. docs/method.md derives and measures it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.detectors.merging import Rule, added, merged_regression
from unseen.odds import in_cache
from unseen.text import TextLogits, neglabel, text_logits

LEVEL_VARIANCE = 1e4  # prior of the intercept: the level of the evidence is free
FEW_NAMES = 4  # with fewer, all but the best say too little about how names spread
PANEL = 128  # samples factored at once: more cost a larger factor, fewer more passes over the state
BORROWED = 10  # negatives whose deviation stands in where the names are too few to have one of their own
TINY = 1e-9  # a variance that is none: every word, or every image, is the same
FEW_VOTES = 5  # fewer say little about how popular a name is: names differ by that much by accident
NORMAL = 1 / 3  # two-sidedness of a normal distribution; two points, however unequal, have 1


class Pool(NamedTuple):
    """A linear regression of the evidence on the image, how well it has done, and what each name was voted."""

    weight: Float[Tensor, " d1"]  # posterior mean, the intercept last
    cov: Float[Tensor, "d1 d1"]  # posterior covariance in units of the noise
    votes: Float[Tensor, " K"]
    seen: Int[Tensor, ""]
    spread: Float[Tensor, ""]  # sum of squared log leverage ratios
    errors: Float[Tensor, " 2"]  # summed squared error of the level alone, and of the pool, each before its sample
    own: Float[Tensor, " 4"]  # summed powers of the evidence
    pooled: Float[Tensor, " 4"]  # the same of what the pool said of each sample before it learned from it
    # sums over the stream of how each image's logits spread: `even` needs their means
    known_deviation: Float[Tensor, ""]
    far_deviation: Float[Tensor, ""]
    shift: Float[Tensor, ""]


class Spread(NamedTuple):
    """How the logits lie, of one image or on average: one normal for the known names, one for the negatives."""

    known_deviation: Float[Tensor, "*T"]
    far_deviation: Float[Tensor, "*T"]
    shift: Float[Tensor, "*T"]  # mean logit of the known names less that of the negatives


class Evidence(NamedTuple):
    """What the frozen text says of each sample, in nats."""

    known: Float[Tensor, " T"]
    spread: Spread


class Record(NamedTuple):
    """What a stream has shown up to each sample."""

    seen: Int[Tensor, "*T"]
    errors: Float[Tensor, "*T 2"]
    own: Float[Tensor, "*T 4"]
    pooled: Float[Tensor, "*T 4"]


class Say(NamedTuple):
    """How much a stream has earned its pool."""

    level: Float[Tensor, "*T"]  # mean evidence so far
    slopes: Float[Tensor, "*T"]  # from 0, where images that look alike have nothing in common, to 1
    whole: Float[Tensor, "*T"]  # weight of the pooled evidence against a sample's own


class Lesson(NamedTuple):
    """What a block teaches, as if its samples had come one by one: each row is computed before its own sample."""

    predicted: Float[Tensor, " T"]  # pooled evidence at the sample
    leverage: Float[Tensor, " T"]  # how far the pool is from being settled there
    white: Float[Tensor, "T d1"]  # what the sample takes from the covariance: its row times itself
    innovation: Float[Tensor, " T"]


@dataclass(frozen=True, eq=False)
class PooledEvidence(Detector[Pool]):
    """Score by a sample's own evidence and that of its likes, learned online by Bayesian linear regression.

    Nothing is routed, so there is no gate to set wrong: a stream that holds one kind only, or begins so, is no special
    case. The likes get more say the better they foretell evidence and the more clearly they fall into two groups; where
    the pool would have to extrapolate, a sample keeps its own evidence.
    """

    tau: float = 0.01
    share: float = 0.5  # the say of the stream; twice as much where it falls into two groups
    enough: float = 0.1  # share of the variance that likes must foretell to be half believed
    reach: float = 2.5  # standard deviations of leverage within which the pool may speak
    balance: float = 0.25  # how much of a name's popularity is divided out when naming

    name: ClassVar[str] = "pooled"
    needs_negatives: ClassVar[bool] = True
    derives_baseline: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive(tau=self.tau, reach=self.reach, enough=self.enough)
        in_range("share", self.share, 0, 1)
        in_range("balance", self.balance, 0, 1)

    def start(self) -> Pool:
        """Return a pool that knows nothing."""
        variance = torch.full((self.labels.dim + 1,), 1 / self.ridge, dtype=torch.float64)
        variance[-1] = LEVEL_VARIANCE
        zero = torch.zeros((), dtype=torch.float64)
        votes = torch.zeros(len(self.labels.names), dtype=torch.float64)
        errors, own, pooled = (zero.repeat(size) for size in (2, 4, 4))
        fresh = Pool(
            torch.zeros_like(variance), variance.diag(), votes, zero.long(), zero, errors, own, pooled, zero, zero, zero
        )
        return Pool(*(part.to(self.labels.id_anchors.device) for part in fresh))

    def read(self, state: Pool, z: Float[Tensor, "T d"]) -> Reading:
        """Score each sample of a block as if it came next."""
        text = text_logits(self.labels, z, tau=self.tau)
        frozen, x = evidence(text, self.lean), with_level(z)
        predicted, leverage = x @ state.weight, ((x @ state.cov) * x).sum(1)
        ratio = self._ratio(leverage, state.seen, slopes(state.cov))
        say = self._say(Record(state.seen, state.errors, state.own, state.pooled))
        spread = Spread(
            *((total + one) / (state.seen + 1) for total, one in zip(state[-3:], frozen.spread, strict=True))
        )
        is_open = self._open(ratio, state.spread, state.seen)
        score, even = self._combined(frozen.known, self._even(spread), predicted, leverage, is_open, say)
        return Reading.frozen(score.to(z.dtype), self._named(text, state.votes), even.to(z.dtype))

    def learn(self, state: Pool, z: Float[Tensor, "T d"]) -> tuple[Reading, Pool]:
        """Score each sample of a block before the pool learns from it, in arrival order."""
        text = text_logits(self.labels, z, tau=self.tau)
        frozen, x, ballot = evidence(text, self.lean), with_level(z), votes(text)
        lesson, weight, cov = one_by_one(x, frozen.known, state.weight, state.cov)
        seen = state.seen + torch.arange(len(z), device=z.device)
        ratio = self._ratio(lesson.leverage, seen, slopes(state.cov) - earlier(lesson.white[:, :-1].square().sum(1)))
        is_open = self._open(ratio, state.spread + earlier(ratio.square()), seen)
        record, end = recorded(state, frozen.known, lesson)
        totals = [total + one.cumsum(0) for total, one in zip(state[-3:], frozen.spread, strict=True)]
        even = self._even(Spread(*(total / (seen + 1) for total in totals)))
        say = self._say(record)
        score, even = self._combined(frozen.known, even, lesson.predicted, lesson.leverage, is_open, say)
        reading = Reading(
            score.to(z.dtype),
            self._named(text, state.votes + earlier(ballot)),
            lesson.innovation.sign().to(torch.int8),
            even.to(z.dtype),
        )
        return reading, Pool(
            weight,
            cov,
            state.votes + ballot.sum(0),
            state.seen + len(z),
            state.spread + ratio.square().sum(),
            *end[1:],
            *(total + one.sum() for total, one in zip(state[-3:], frozen.spread, strict=True)),
        )

    def _merged(self, start: Pool, ends: Sequence[Pool], rule: Rule) -> Pool:
        """Return the pool of all parts: the regression and every sum are what one observer of them all would have.

        Only `spread`, `errors` and `pooled` differ: their terms are what each part met on its way.
        """
        totals = Pool(*(added(first, rest) for first, *rest in zip(start, *ends, strict=True)))
        weight, cov = merged_regression(start[:2], [end[:2] for end in ends])
        return totals._replace(weight=weight, cov=cov)

    @property
    def ridge(self) -> float:
        """Return the prior precision of the slopes: worth sqrt(d) samples."""
        return math.sqrt(self.labels.dim)

    @cached_property
    def lean(self) -> float:
        """Return how much of the gap between the mean name and the mean negative is no accident of who was drawn.

        James and Stein's shrinkage, from the text alone: 0 where the gap is what K - 1 names and L negatives drawn from
        one cloud would show (one name is taken out: it may be the right one), near 1 where they come from two clouds.
        """
        known, far = self.labels.id_anchors.double(), self.labels.ood_anchors.double()
        if len(known) == 1:
            return 0.0
        gap = (known.mean(0) - far.mean(0)).square().sum()
        within = sum((rows - rows.mean(0)).square().sum() for rows in (known, far)) / (len(known) + len(far) - 2)
        chance = within * (1 / (len(known) - 1) + 1 / len(far))
        return float((1 - chance / gap).clamp(min=0)) if gap > 0 else 0.0

    @cached_property
    def best_of_names(self) -> float:
        """Return the expected maximum of K standard normals: how far a best name stands out by chance."""
        return expected_maximum(len(self.labels.names))

    def _even(self, spread: Spread) -> Tensor:
        """Return the evidence of an image related to no name: its logits are draws from the two normals of `spread`."""
        names, negatives = len(self.labels.names), len(self.labels.negatives)
        odds = energy_of_draws(names, spread.known_deviation) - energy_of_draws(negatives, spread.far_deviation)
        contrast = self.best_of_names * spread.known_deviation
        return odds + (1 - self.lean) * spread.shift + contrast + surprise(contrast, spread, names) / 2

    def _ratio(self, leverage: Tensor, seen: Tensor, trace: Tensor) -> Tensor:
        """Return log(leverage / mean leverage); the mean is p / n, with p the parameters in use."""
        used = 1 + self.labels.dim - self.ridge * trace
        return torch.where(seen > 0, torch.log(leverage * seen / used), 0.0)

    def _open(self, ratio: Tensor, spread: Tensor, seen: Tensor) -> Tensor:
        """Return how far the pool may speak, from 0 to 1: a normal tail beyond `reach` deviations of the log ratio."""
        prior = math.log(2) / self.reach  # the rule of thumb that twice the mean leverage is far
        variance = (prior**2 + spread) / (1 + seen)
        return torch.exp(-0.5 * (ratio.clamp(min=0).square() / variance - self.reach**2).clamp(min=0))

    def _say(self, record: Record) -> Say:
        """Return what the pool has earned; every count starts from `ridge` samples that showed nothing."""
        level = record.own[..., 0] / record.seen.clamp(min=1)
        plain, left = record.errors.unbind(-1)
        known = record.seen / (record.seen + self.ridge)
        explained = known * torch.where(plain > 0, 1 - left / plain, 0.0).clamp(min=0)
        before, after = (
            two_sided(sums, (record.seen - first).clamp(min=0), self.ridge)
            for sums, first in ((record.own, 0), (record.pooled, 1))
        )
        slopes = self._unblurred(before, after) * explained.square() / (explained.square() + self.enough**2)
        parted = ((after - NORMAL) / (1 - NORMAL)).clamp(0, 1)
        return Say(level, slopes, known * (self.share * (1 + slopes * parted.sqrt())).clamp(max=1))

    def _unblurred(self, before: Tensor, after: Tensor) -> Tensor:
        """Return 1 where likes part the stream at least as clearly as its samples do by themselves, else less."""
        return (after / before).clamp(max=1)

    def _combined(
        self, own: Tensor, even: Tensor, predicted: Tensor, leverage: Tensor, is_open: Tensor, say: Say
    ) -> tuple[Tensor, Tensor]:
        """Return the score, and the score of even evidence: that, too, is drawn to the level of the stream."""
        weight, slopes = is_open * say.whole, say.slopes / (1 + leverage)
        pooled = say.level + slopes * (predicted - say.level)
        return own + weight * (pooled - own), even + weight * (1 - slopes) * (say.level - even)

    def _named(self, text: TextLogits, votes: Tensor) -> Tensor:
        return (text.known - self.balance * torch.log1p(votes / FEW_VOTES)).argmax(1)


def evidence(text: TextLogits, lean: float) -> Evidence:
    """Return NegLabel's log-odds plus MCM's contrast plus half the surprise of a name standing out so far by chance.

    A share `lean` of the distance between the mean name and the mean negative is taken out of the odds: it tells the
    one cloud of words from the other, not the known image from the unknown.
    """
    (known_mean, known_var), (far_mean, far_var) = (mean_and_variance(part) for part in text)
    spread = Spread(known_var.sqrt(), far_var.sqrt(), known_mean - far_mean)
    count, peak = text.known.shape[1], text.known.amax(1)
    contrast = peak - known_mean
    f = neglabel(text) - lean * spread.shift + contrast + surprise(contrast, spread, count) / 2
    mean_of_names, deviation = without_the_best(known_mean.double(), known_var.double(), peak.double(), count)
    return Evidence(f.double(), Spread(deviation, far_var.double().sqrt(), mean_of_names - far_mean.double()))


def without_the_best(
    mean: Float[Tensor, " T"], variance: Float[Tensor, " T"], best: Float[Tensor, " T"], count: int
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Return mean and deviation of the normal that `count` logits are draws from, estimated from all but the best.

    The right name of a known image is no draw, and among few names it would widen the normal that says where unrelated
    images lie. Both moments are corrected for the loss of a best that is a draw.
    """
    if count < FEW_NAMES:
        return mean, variance.sqrt()
    rest = (count * mean - best) / (count - 1)
    square = (count * (variance + mean.square()) - best.square()) / (count - 1) - rest.square()
    first, second = expected_maximum(count), expected_maximum(count, power=2)
    kept = (count - second) / (count - 1) - (count - 2 + second) / (count - 1) ** 2
    deviation = (square.clamp(min=0) / kept).sqrt()
    return rest + first / (count - 1) * deviation, deviation


def energy_of_draws(count: int, deviation: Tensor) -> Tensor:
    """Return the typical logsumexp of `count` draws from a normal around 0: Derrida's random energy model.

    The mean, log n + deviation^2 / 2, is typical only while many draws share the mass. At sqrt(2 log n) and
    beyond the largest few hold it all, and the typical value goes on along the tangent.
    """
    frozen = math.sqrt(2 * math.log(max(count, 2)))
    return torch.where(deviation < frozen, math.log(count) + deviation.square() / 2, frozen * deviation)


def surprise(contrast: Tensor, spread: Spread, names: int) -> Tensor:
    """Return the nats it takes to stand out that far among names that spread so; few borrow from the negatives."""
    own, borrowed = names * spread.known_deviation.square(), BORROWED * spread.far_deviation.square()
    variance = (own + borrowed) / (names + BORROWED)
    return contrast.square() / variance.clamp(min=TINY) / 2


def mean_and_variance(logits: Float[Tensor, "T C"]) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Return both for each row, a cacheful of rows at a time."""
    mean, variance = (logits.new_empty(len(logits)) for _ in range(2))
    for rows in in_cache(logits):
        mean[rows] = logits[rows].mean(1)
        variance[rows] = (logits[rows] - mean[rows].unsqueeze(1)).square_().mean(1)
    return mean, variance


def votes(text: TextLogits) -> Float[Tensor, "T K"]:
    """Return each sample's vote: the posterior of the known name that has more than half of it, else nothing."""
    posterior = text.known.softmax(1)
    return (posterior * (posterior > 0.5)).double()


def recorded(state: Pool, f: Float[Tensor, " T"], lesson: Lesson) -> tuple[Record, Record]:
    """Return what the stream had shown before each sample of a block, and after the last.

    Before its first sample a stream has no level and its pool no opinion, so that one counts as evidence only.
    """
    seen = state.seen + torch.arange(len(f), device=f.device)
    level = (state.own[0] + earlier(f)) / seen.clamp(min=1)
    plain, left = (f - level).square() * seen / (seen + 1), (f - lesson.predicted).square() / (1 + lesson.leverage)
    later = (seen > 0).unsqueeze(1)
    gained = (later * torch.stack([plain, left], dim=1), powers(f), later * powers(lesson.predicted))
    sums = list(zip((state.errors, state.own, state.pooled), gained, strict=True))
    before = Record(seen, *(total + earlier(part) for total, part in sums))
    return before, Record(state.seen + len(f), *(total + part.sum(0) for total, part in sums))


def powers(values: Float[Tensor, " T"]) -> Float[Tensor, "T 4"]:
    """Return the first four powers of each value."""
    return torch.stack([values**power for power in (1, 2, 3, 4)], dim=1)


def two_sided(sums: Float[Tensor, "*T 4"], count: Int[Tensor, "*T"], prior: float) -> Float[Tensor, "*T"]:
    """Return Sarle's coefficient of bimodality, (skewness^2 + 1) / kurtosis, from sums of powers.

    It is 1/3 for a normal and 1 for two points of any weights. `prior` samples of a normal stand for what was not seen.
    """
    mean, second, third, fourth = (sums / count.clamp(min=1).unsqueeze(-1)).unbind(-1)
    variance = torch.maximum(second - mean.square(), 1e-6 * second + TINY)  # below it, powers only show their rounding
    skew = (third - 3 * mean * second + 2 * mean**3) / variance**1.5
    kurtosis = (fourth - 4 * mean * third + 6 * mean.square() * second - 3 * mean**4) / variance.square()
    known = torch.where(count > 4, count / (count + prior), 0.0)  # four moments tell nothing about four samples
    return ((known * skew).square() + 1) / (known * kurtosis + 3 * (1 - known)).clamp(min=1)


def one_by_one(
    x: Float[Tensor, "T d1"], f: Float[Tensor, " T"], weight: Float[Tensor, " d1"], cov: Float[Tensor, "d1 d1"]
) -> tuple[Lesson, Float[Tensor, " d1"], Float[Tensor, "d1 d1"]]:
    """Return exactly what a Kalman filter computes sample by sample, and its mean and covariance after the last."""
    lessons = []
    for rows, values in zip(x.split(PANEL), f.split(PANEL), strict=True):
        lesson = panel(rows, values, weight, cov)
        weight = weight + lesson.white.T @ lesson.innovation
        cov = cov - lesson.white.T @ lesson.white
        lessons.append(lesson)
    return Lesson(*(torch.cat(part) for part in zip(*lessons, strict=True))), weight, cov


def panel(
    x: Float[Tensor, "T d1"], f: Float[Tensor, " T"], weight: Float[Tensor, " d1"], cov: Float[Tensor, "d1 d1"]
) -> Lesson:
    """Return what a few samples teach one by one, from one Cholesky factor.

    Their evidence has covariance I + x cov x' = C C'; solving with C subtracts from each sample what the earlier ones
    have already told.
    """
    gain = x @ cov
    factor = torch.linalg.cholesky(gain @ x.T + torch.eye(len(x), dtype=x.dtype, device=x.device))
    known = torch.cat([gain, (f - x @ weight).unsqueeze(1)], dim=1)
    white = torch.linalg.solve_triangular(factor, known, upper=False)
    deviation = factor.diagonal()
    return Lesson(f - white[:, -1] * deviation, deviation.square() - 1, white[:, :-1], white[:, -1])


@cache
def expected_maximum(count: int, *, power: int = 1) -> float:
    """Return the mean of the largest of `count` standard normals, or of its `power`, by quadrature.

    >>> round(expected_maximum(1), 6), round(expected_maximum(2), 6)
    (0.0, 0.56419)
    """
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    below = torch.special.log_ndtr(x) * (count - 1)
    density = count * torch.exp(below - x.square() / 2) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(x**power * density, x))


def with_level(z: Float[Tensor, "T d"]) -> Float[Tensor, "T d1"]:
    """Return samples with a one for the intercept, in the float64 the regression needs."""
    return torch.cat([z, z.new_ones(len(z), 1)], dim=1).double()


def slopes(cov: Float[Tensor, "d1 d1"]) -> Float[Tensor, ""]:
    """Return the summed variance of the slopes, the intercept left out."""
    return cov.diagonal()[:-1].sum()


def earlier(values: Tensor) -> Tensor:
    """Return the running sum over the earlier rows only."""
    return values.cumsum(0) - values
