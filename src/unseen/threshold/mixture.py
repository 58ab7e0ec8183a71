"""One mixture: where the margins of known and of unknown images lie, by all that is known of them.

Two normals, fitted by expectation maximisation to a histogram of margins. An image of the stream belongs to both sides,
to each with its responsibility; an image whose side a person has told (an example, a calibration photo, a corrected
verdict) belongs to that side alone. A prior says where margins lie before there is any image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.odds import neglabel, text_logits

Places = Float[np.ndarray, " N"]  # a value at each place of the grid


@dataclass(frozen=True)
class MixturePrior:
    """Where margins lie before there is any image, and how much the images of a stream may say against it.

    Margins are log-odds of the known names against the negatives, less log(K / L). The numbers were found by a random
    search on half of 438 streams (those of `benchmarks/families.py`, `verdicts.py`, `label_spaces.py` and first jobs),
    and rounded; the other half gained nearly as much. The weight of the unknown mean, `least_p_known` and
    `interval_deviation` were then set by all of them and the demo.
    """

    text_tau: float = 1 / 30  # at which a text stands for an image: it is nearer to other texts than an image is
    known_mean: float = 3.0  # where no label space says otherwise
    known_mean_by_text: tuple[float, float, float] = (-1.0, 0.64, 0.75)  # start; times mean, deviation of the names'
    known_mean_range: tuple[float, float] = (1.0, 8.0)  # of the label spaces that this was fitted to
    # between label spaces, below and above: with a wide one below, a stream of near unknown images alone would pass
    known_mean_deviations: tuple[float, float] = (1.0, 6.0)
    known_deviation: float = 3.1
    known_deviation_images: float = 45.0  # that this deviation is worth
    unknown_mean: float = -3.1
    unknown_mean_images: float = 8.0
    unknown_deviation: float = 1.2
    unknown_deviation_images: float = 2.0
    share_images: float = 7.0  # of each side, that the equal shares before the first image are worth
    most_images: float = 70.0  # that a stream of any length counts for: margins are no two normals, labels are sure
    outliers: float = 1e-3  # share of the images of a side that may lie anywhere
    least_p_known: float = 0.17  # an image that is known with less is called unknown, whatever recall is wanted
    recent: float = 512.0  # images after which one says e times less of the share of known images
    rounds: int = 25
    share_rounds: int = 10
    shift_deviation: float = 0.5  # nats by which corrected verdicts may move what follows from margins; with 1.5 ten
    # of them, which lie where most images are unknown, took up to three points from one first job in seven
    shifts: int = 24  # steps of the grid that are tried on each side
    # The recall varies more between streams than the fit can see: nine streams of ten, `benchmarks/verdicts.py`
    photos_for_half: float = 8.0  # photos of known names after which the interval is narrower by the root of two
    interval_deviation: float = 0.7  # of the known mean, in deviations of known margins


PRIOR = MixturePrior()


class Grid(NamedTuple):
    """Margins at which images are counted, evenly spaced; one between two of them is divided between both."""

    lowest: float = -40.0
    step: float = 0.25
    size: int = 321

    @property
    def margins(self) -> Float[Tensor, " N"]:
        """The margin of each place."""
        return self.lowest + self.step * torch.arange(self.size, dtype=torch.float64)

    def counts(self, margins: Float[Tensor, " n"], weight: Float[Tensor, " n"] | None = None) -> Float[Tensor, " N"]:
        """The weight of the margins at each place.

        Divided, not rounded to one place, so that a rounding error moves the threshold by as little.
        """
        position = ((margins.double() - self.lowest) / self.step).clamp(0, self.size - 1 - 1e-9)
        left = position.long()
        part = position - left
        weight = torch.ones_like(part) if weight is None else weight
        found = weight.new_zeros(self.size)
        return found.index_add_(0, left, weight * (1 - part)).index_add_(0, left + 1, weight * part)

    def interpolate(self, table: Float[Tensor, " N"], margins: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The value of a table over the places at each margin."""
        return torch.from_numpy(np.interp(margins.double().numpy(), self.margins.numpy(), table.numpy()))


GRID = Grid()


def expected_known_mean(labels: LabelSpace) -> float:
    """Where the margins of known images lie on average, before there is any: by those that the names' texts would have.

    Their mean says how far the names lie from the negatives, their deviation how unlike each other they are in that.
    """
    margins = neglabel(text_logits(labels, labels.id_anchors, tau=PRIOR.text_tau)).double()
    margins -= math.log(len(labels.names) / max(1, len(labels.negatives)))
    start, of_mean, of_deviation = PRIOR.known_mean_by_text
    expected = start + of_mean * float(margins.mean()) + of_deviation * float(margins.std(correction=0))
    low, high = PRIOR.known_mean_range
    return min(max(expected, low), high)


class Side(NamedTuple):
    """A normal of margins."""

    mean: float
    deviation: float

    def density(self, x: Places) -> Places:
        """The density at each margin, with a floor for outliers."""
        height = (1 - PRIOR.outliers) / (self.deviation * math.sqrt(2 * math.pi))
        normal = height * np.exp(np.square(x - self.mean) * (-0.5 / self.deviation**2))
        return normal + PRIOR.outliers / (GRID.step * GRID.size)

    def drawn_to(self, weight: Places, x: Places, prior: Side, images: tuple[float, float]) -> Side:
        """The side of these images, whose mean and deviation are drawn to a prior by so many images each."""
        total, (for_mean, for_deviation) = float(weight.sum()), images
        mean = (float(weight @ x) + for_mean * prior.mean) / (total + for_mean)
        square = float(weight @ np.square(x - mean)) + for_deviation * prior.deviation**2
        return Side(mean, math.sqrt(square / (total + for_deviation)))


UNKNOWN_PRIOR = Side(PRIOR.unknown_mean, PRIOR.unknown_deviation)


class Fit(NamedTuple):
    """What follows from margins."""

    threshold: Float[Tensor, ""]
    p_known: Float[Tensor, " N"]  # at each place of the grid
    recall: Float[Tensor, " 2"]  # the lowest and the highest share of known images that the threshold may keep


class Told(NamedTuple):
    """How many images whose side a person has told lie at each place of the grid.

    Photos of the known names show where margins of known images lie. Verdicts are corrected where a person looked, most
    often near the threshold: they show on which side an image is that has this margin, and not where images lie.
    """

    photos: Float[Tensor, " N"]
    known: Float[Tensor, " N"]  # corrected
    unknown: Float[Tensor, " N"]

    @classmethod
    def none(cls) -> Told:
        """No such image."""
        return cls(*(torch.zeros(GRID.size, dtype=torch.float64) for _ in range(3)))

    @property
    def images(self) -> int:
        """How many images there are."""
        return round(sum(float(part.sum()) for part in self))


def fit_mixture(
    counts: Float[Tensor, " N"],
    recent: Float[Tensor, " N"],
    told: Told,
    recall: float,
    *,
    known_mean: float = PRIOR.known_mean,
) -> Fit:
    """Threshold, `p_known` and recall interval; `known_mean` is where the prior has known images.

    `counts` are the images of the stream at each place of the grid, `recent` the same with less weight for earlier
    ones: they give the share of known images now. The rounds are NumPy: vectors are small and calls many, so that
    torch's cost per call was most of the time, and this fit as long as all that `pooled` does for 45 images.
    """
    x, stream, latest, photos = (one.numpy() for one in (GRID.margins, counts, recent, told.photos))
    stream = stream * (PRIOR.most_images / (PRIOR.most_images + stream.sum()))
    known_prior = Side(known_mean, PRIOR.known_deviation)
    known, unknown, share = known_prior, UNKNOWN_PRIOR, 0.5
    for _ in range(PRIOR.rounds):
        p = responsibility(x, known, unknown, share)
        share = share_of(stream, p)
        from_known, from_unknown = stream * p + photos, stream * (1 - p)
        between = PRIOR.known_mean_deviations[known.mean > known_mean]
        for_mean = (known.deviation / between) ** 2  # the precision of the prior, in images
        known = known.drawn_to(from_known, x, known_prior, (for_mean, PRIOR.known_deviation_images))
        images = PRIOR.unknown_mean_images, PRIOR.unknown_deviation_images
        unknown = unknown.drawn_to(from_unknown, x, UNKNOWN_PRIOR, images)
    for _ in range(PRIOR.share_rounds):
        share = share_of(latest, responsibility(x, known, unknown, share))
    p_known = torch.from_numpy(responsibility(x, known, unknown, share))
    shift = best_shift(p_known, told)
    p_known = shifted(p_known, shift)
    wanted = known.mean + known.deviation * quantile(1 - recall) + shift * GRID.step
    threshold = max(wanted, margin_reaching(p_known, PRIOR.least_p_known))
    off = PRIOR.interval_deviation / math.sqrt(1 + float(told.photos.sum()) / PRIOR.photos_for_half)
    z = (known.mean - threshold) / known.deviation
    interval = torch.special.ndtr(torch.tensor([z - 1.645 * off, z + 1.645 * off], dtype=torch.float64))
    return Fit(torch.tensor(threshold, dtype=torch.float64), p_known, interval)


def best_shift(p: Float[Tensor, " N"], told: Told) -> int:
    """By how many places of the grid `p_known` lies too low, as corrected verdicts show."""
    if not float(told.known.sum() + told.unknown.sum()):
        return 0

    def likelihood(shift: int) -> float:
        moved = shifted(p, shift)
        prior = (shift * GRID.step / PRIOR.shift_deviation) ** 2 / 2
        return float(told.known @ moved.log() + told.unknown @ (1 - moved).log()) - prior

    return max(range(-PRIOR.shifts, PRIOR.shifts + 1), key=likelihood)


def shifted(p: Float[Tensor, " N"], shift: int) -> Float[Tensor, " N"]:
    """A table over the grid moved up by some places."""
    return p[(torch.arange(len(p)) - shift).clamp(0, len(p) - 1)]


def responsibility(x: Places, known: Side, unknown: Side, share: float) -> Places:
    """The probability that an image with each margin is known: below the known mean it only falls, above only rises."""
    a, b = share * known.density(x), (1 - share) * unknown.density(x)
    p, middle = a / (a + b), min(max(int(np.searchsorted(x, known.mean)), 1), len(x) - 1)
    p[:middle] = np.minimum.accumulate(p[:middle][::-1])[::-1]
    return np.maximum.accumulate(p)


def margin_reaching(p: Float[Tensor, " N"], least: float) -> float:
    """The lowest margin whose probability is `least`, between two places of the grid."""
    at = int((p < least).sum().clamp(1, len(p) - 1))  # p never falls
    part = (least - p[at - 1]) / (p[at] - p[at - 1]).clamp(min=1e-12)
    return float(GRID.margins[at - 1] + GRID.step * part.clamp(0, 1))


def share_of(counts: Places, p: Places) -> float:
    """The share of known images, drawn to one half."""
    return float((counts @ p + PRIOR.share_images) / (counts.sum() + 2 * PRIOR.share_images))


def quantile(probability: float) -> float:
    """The quantile of a standard normal."""
    return float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))
