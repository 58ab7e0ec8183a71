"""The mixture of known and unknown margins against its formula, and what must hold of any margins."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from helpers.margins import gumbel, normal
from unseen import LabelSpace
from unseen.threshold.mixture import GRID, PRIOR, Fit, Told, expected_known_mean, fit_mixture

NONE = torch.zeros(0, dtype=torch.float64)
MIXED = torch.cat([normal(300, 4, 2), gumbel(300, -5, 2)])


def told(*, photos: Tensor = NONE, known: Tensor = NONE, unknown: Tensor = NONE) -> Told:
    return Told(*map(GRID.counts, (photos, known, unknown)))


def fit(margins: Tensor, recall: float = 0.95, said: Told | None = None) -> Fit:
    counts = GRID.counts(margins)
    return fit_mixture(counts, counts, said or Told.none(), recall)


def kept(margins: Tensor, threshold: Tensor) -> float:
    return float((margins >= threshold).double().mean())


class Literal:
    """The fit, image by image; images are numbers of places of the grid, so that none is divided."""

    def __init__(
        self, images: np.ndarray, recent: np.ndarray, said: tuple[np.ndarray, ...], recall: float, mean: float
    ) -> None:
        photos, known_said, unknown_said = said
        self.x = np.array([GRID.lowest + GRID.step * place for place in range(GRID.size)])
        self.known, self.unknown = (
            (mean, PRIOR.known_deviation),
            (PRIOR.unknown_mean, PRIOR.unknown_deviation),
        )
        first = self.known, self.unknown
        self.share, heard = 0.5, PRIOR.most_images / (PRIOR.most_images + len(images))
        for _ in range(PRIOR.rounds):
            p = self.p()[images]
            self.share = (heard * p.sum() + PRIOR.share_images) / (heard * len(images) + 2 * PRIOR.share_images)
            for_mean = (self.known[1] / PRIOR.known_mean_deviations[self.known[0] > mean]) ** 2
            among = np.append(images, photos), np.append(heard * p, np.ones(len(photos)))
            self.known = self.side(*among, first[0], for_mean, PRIOR.known_deviation_images)
            numbers = PRIOR.unknown_mean_images, PRIOR.unknown_deviation_images
            self.unknown = self.side(images, heard * (1 - p), first[1], *numbers)
        for _ in range(PRIOR.share_rounds):
            now = self.p()[recent]
            self.share = (now.sum() + PRIOR.share_images) / (len(recent) + 2 * PRIOR.share_images)
        steps = sorted(range(-PRIOR.shifts, PRIOR.shifts + 1), key=abs)
        tables = {step: self.p()[np.clip(np.arange(GRID.size) - step, 0, GRID.size - 1)] for step in steps}
        fits = {
            step: np.log(p[known_said]).sum()
            + np.log(1 - p[unknown_said]).sum()
            - (step * GRID.step / PRIOR.shift_deviation) ** 2 / 2
            for step, p in tables.items()
        }
        best = max(steps, key=fits.__getitem__)
        self.p_known, wanted = tables[best], NormalDist(*self.known).inv_cdf(1 - recall) + best * GRID.step
        self.threshold = max(wanted, float(np.interp(PRIOR.least_p_known, self.p_known, self.x)))

    def side(
        self, images: np.ndarray, weight: np.ndarray, prior: tuple[float, float], n: float, m: float
    ) -> tuple[float, float]:
        mean = (weight @ self.x[images] + n * prior[0]) / (weight.sum() + n)
        square = weight @ (self.x[images] - mean) ** 2 + m * prior[1] ** 2
        return float(mean), math.sqrt(square / (weight.sum() + m))

    def p(self) -> np.ndarray:
        """The probability of each place, which never falls with the margin."""
        anywhere = PRIOR.outliers / (GRID.step * GRID.size)
        a, b = (
            share * ((1 - PRIOR.outliers) * np.array([NormalDist(*side).pdf(at) for at in self.x]) + anywhere)
            for share, side in ((self.share, self.known), (1 - self.share, self.unknown))
        )
        p, middle = a / (a + b), int((self.x < self.known[0]).sum())
        below = [p[place:middle].min() for place in range(middle)]
        return np.array(below + [max(*below[-1:], *p[middle : place + 1]) for place in range(middle, len(p))])


def places(count: int, mean: float, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(mean, 2.5, count)
    return np.round((drawn - GRID.lowest) / GRID.step).astype(int).clip(0, GRID.size - 1)


@pytest.mark.parametrize(("recall", "mean"), [(0.8, PRIOR.known_mean), (0.95, 5.0)])
@pytest.mark.parametrize(
    ("known", "unknown", "photos", "corrected"),
    [(0, 0, 0, 0), (200, 100, 0, 0), (10, 300, 40, 0), (100, 100, 0, 12), (30, 30, 20, 20)],
)
def test_the_fit_is_that_of_a_reference_written_image_by_image(known, unknown, photos, corrected, recall, mean):
    images = np.append(places(known, 4, 0), places(unknown, -4, 1))
    said = places(photos, 6, 2), places(corrected, -1, 3), places(corrected // 2, -2, 4)
    recent = images[::2]
    expected = Literal(images, recent, said, recall, mean)
    counts, now, *parts = (
        torch.bincount(torch.from_numpy(part), minlength=GRID.size).double() for part in (images, recent, *said)
    )
    found = fit_mixture(counts, now, Told(*parts), recall, known_mean=mean)
    np.testing.assert_allclose(found.p_known.numpy(), expected.p_known, rtol=1e-9)
    assert float(found.threshold) == pytest.approx(expected.threshold, abs=1e-9)


def test_known_margins_are_expected_where_the_texts_of_the_names_say() -> None:
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(24, generator=draw, dtype=torch.float64)
    names, negatives = (normalize(2 * common + torch.randn(n, 24, generator=draw).double(), dim=1) for n in (5, 40))

    def margin(text: list[float]) -> float:
        known, unknown = (
            sum(math.exp(sum(a * b for a, b in zip(text, other, strict=True)) * 30) for other in others.tolist())
            for others in (names, negatives)
        )
        return math.log(known / 5) - math.log(unknown / 40)

    margins = [margin(text) for text in names.tolist()]
    start, of_mean, of_deviation = PRIOR.known_mean_by_text
    expected = start + of_mean * float(np.mean(margins)) + of_deviation * float(np.std(margins))
    low, high = PRIOR.known_mean_range
    assert low < expected < high
    assert expected_known_mean(space_of(names, negatives)) == pytest.approx(expected, abs=1e-9)
    near, far = space_of(names, names.repeat(8, 1)), space_of(names, negatives - 9 * names.mean(0))
    assert (expected_known_mean(near), expected_known_mean(far)) == (low, high)


def space_of(names: Tensor, negatives: Tensor) -> LabelSpace:
    words = tuple(f"word {place}" for place in range(len(names) + len(negatives)))
    return LabelSpace(words[: len(names)], words[len(names) :], names, normalize(negatives, dim=1))


def test_counts_divide_a_margin_between_its_neighbours_and_sum_weights():
    highest = float(GRID.margins[-1])
    counts = GRID.counts(torch.tensor([GRID.lowest, 0.1, highest - 0.1, highest, 1e9, -1e9], dtype=torch.float64))
    at_zero = round(-GRID.lowest / GRID.step)
    assert counts[at_zero : at_zero + 2].tolist() == pytest.approx([0.6, 0.4])
    assert (float(counts[0]), float(counts[-1]), float(counts.sum())) == pytest.approx((2, 2.6, 6))
    margins, weight = normal(50, 3, 7), torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = sum(w * GRID.counts(m[None]) for m, w in zip(margins, weight, strict=True))
    torch.testing.assert_close(GRID.counts(margins, weight), expected)


@given(margin=st.floats(-60, 60))
def test_a_table_is_interpolated_as_margins_are_divided_between_places(margin):
    table, one = normal(GRID.size, 0, 1), torch.tensor([margin], dtype=torch.float64)
    assert float(GRID.interpolate(table, one)) == pytest.approx(float(GRID.counts(one) @ table), abs=1e-7)


@pytest.mark.parametrize(("recall", "said"), [(0.95, {}), (0.95, {"photos": normal(30, 2, 3)}), (0.99, {})])
def test_a_threshold_moves_by_no_leap(said, recall):
    """Else a rounding error could move it: the largest leap on the way from one set of margins to another is sought."""
    start, stop = torch.cat([normal(40, 8, 4), normal(40, -3, 2)]), torch.cat([normal(40, 3, 2), normal(40, 0, 2)])

    def threshold(at: float) -> float:
        return float(fit(start + at * (stop - start), recall, told(**said)).threshold)

    low, high = 0.0, 1.0
    while high - low > 1e-7:
        ends = [low + (high - low) * part / 4 for part in range(5)]
        leaps = [abs(threshold(b) - threshold(a)) for a, b in pairwise(ends)]
        low, high = ends[(most := leaps.index(max(leaps)))], ends[most + 1]
    assert abs(threshold(high) - threshold(low)) < 1e-5


@given(
    mean=st.floats(-40, 60),
    deviation=st.floats(0, 30),
    count=st.integers(0, 3000),
    share=st.floats(0, 1),
    photos=st.integers(0, 200),
    corrected=st.integers(0, 30),
    seed=st.integers(0, 99),
)
def test_any_margins_give_probabilities_that_never_fall_and_finite_thresholds_that_fall_where_more_is_wanted(
    mean, deviation, count, share, photos, corrected, seed
):
    known = normal(round(count * share), mean, deviation, seed=seed)
    margins = torch.cat([known, gumbel(count - len(known), -4, 3, seed=seed)])
    said = told(photos=normal(photos, mean, 3), known=normal(corrected, -2, 2), unknown=normal(corrected, 1, 2))
    found = [fit(margins, recall, said) for recall in (0.5, 0.8, 0.95, 0.99)]
    thresholds = [float(one.threshold) for one in found]
    assert all(map(math.isfinite, thresholds))
    assert thresholds == sorted(thresholds, reverse=True)
    for one in found:
        assert bool(((one.p_known >= 0) & (one.p_known <= 1)).all())
        assert bool((one.p_known.diff() >= -1e-12).all())
        assert 0 <= float(one.recall[0]) <= float(one.recall[1]) <= 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_mixed_stream_keeps_about_the_wanted_share_and_rejects_the_unknown(share, seed):
    known = normal(round(2000 * share), 5, 2.4, seed=seed)
    unknown = gumbel(2000 - len(known), -5, 2, seed=seed + 10)
    threshold = fit(torch.cat([known, unknown])).threshold
    assert 0.9 <= kept(normal(20_000, 5, 2.4, seed=50), threshold) <= 0.99
    assert kept(unknown, threshold) < 0.1


def test_streams_of_one_kind_are_kept_or_rejected():
    assert kept(normal(3000, 5, 2.4), fit(normal(3000, 5, 2.4)).threshold) > 0.9
    assert kept(gumbel(3000, -5, 2), fit(gumbel(3000, -5, 2)).threshold) < 0.1


@pytest.mark.parametrize("mean", [-2.0, 1.0, 4.0, 9.0])
def test_photos_bring_the_threshold_to_where_they_lie_and_never_above(mean):
    photos = normal(200, mean, 2.4)
    before, after = (fit(MIXED, said=one).threshold for one in (None, told(photos=photos)))
    wanted = photos.quantile(0.05)
    assert float(abs(after - wanted)) < float(abs(before - wanted)) or after <= wanted
    likely = GRID.margins[int((fit(MIXED, said=told(photos=photos)).p_known >= PRIOR.least_p_known).double().argmax())]
    assert float(after) <= max(float(wanted) + 0.5, float(likely))


def test_photos_narrow_the_interval_which_holds_the_wanted_recall():
    wide, narrow = (fit(MIXED, said=told(photos=normal(count, 4, 2))).recall for count in (0, 60))
    for low, high in (wide, narrow):
        assert low < 0.95 < high
    assert float(narrow.diff()) < float(wide.diff())


@pytest.mark.parametrize("kind", ["known", "unknown"])
def test_corrected_images_move_threshold_and_probability_to_their_side(kind):
    near = torch.full((10,), -1.0 if kind == "known" else 3.0, dtype=torch.float64)
    before, after = fit(MIXED), fit(MIXED, said=told(**{kind: near}))
    up = 1 if kind == "unknown" else -1
    assert up * float(after.threshold - before.threshold) > 0.3
    assert bool((up * (before.p_known - after.p_known) >= 0).all())
