from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.streams import unit
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.sides import (
    Direction,
    Likelihood,
    PredictionSums,
    SideSums,
    bimodality,
    raised,
    side_weights,
)

MANY = torch.tensor(1e9, dtype=torch.float64)  # effective images: the pool has earned its weight


def side_sums(weight: Tensor, z: Tensor, margin: Tensor) -> SideSums:
    sums = SideSums.empty(z.shape[1])
    sums.add_(weight, z, margin)
    return sums


def prediction_sums(weight: Tensor, predicted: Tensor) -> PredictionSums:
    sums = PredictionSums.empty()
    sums.add_(weight, predicted, 0)
    return sums


def margins(count: int, *, seed: int = 0) -> Tensor:
    return 3 + 6 * torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weighted_ridge(weight: Tensor, z: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and centre of the regression in which each side weighs one half, from its definition."""
    rows = (weight / weight.sum(1, keepdim=True)).mean(0)
    effective = 4 / (1 / weight.sum(1)).sum()
    centre = (rows[:, None] * z).sum(0)
    off = z - centre
    scatter = off.T @ torch.diag(rows) @ off + POOLED.ridge / effective * torch.eye(z.shape[1], dtype=z.dtype)
    return torch.linalg.solve(scatter, off.T @ (rows * (margin - rows @ margin))), centre


def test_side_weights_add_to_one_and_are_equal_at_the_boundary():
    weight = side_weights(torch.tensor([POOLED.boundary, POOLED.boundary + 1, -1e3, 1e3]).double())
    torch.testing.assert_close(weight.sum(0), torch.ones(4).double())
    assert weight[:, 0].tolist() == [0.5, 0.5]
    assert float((weight[1, 1] / weight[0, 1]).log()) == pytest.approx(1)
    assert bool(((weight >= 0) & (weight <= 1)).all())


@pytest.mark.parametrize(("count", "dim"), [(40, 8), (5, 8), (300, 3)])
def test_the_direction_is_a_ridge_regression_in_which_both_sides_weigh_the_same(count, dim):
    z, margin = unit(count, dim), margins(count)
    weight = side_weights(margin)
    found = Direction.of(side_sums(weight, z, margin))
    slope, centre = weighted_ridge(weight, z, margin)
    torch.testing.assert_close(found.slope, slope)
    torch.testing.assert_close(found.centre, centre)
    assert float(found.images) == pytest.approx(4 / float((1 / weight.sum(1)).sum()))


@pytest.mark.parametrize("side", [0, 1])
def test_more_images_of_one_side_do_not_move_the_direction(side):
    z, margin = unit(400, 6), margins(400)
    sides = (margin > 3).double()
    weight = torch.stack([1 - sides, sides])  # each image is of one side only
    more = torch.ones(2, 1).double()
    more[side] = 10
    ridge_free = [
        Direction.of(SideSums(*(1e9 * part for part in side_sums(times * weight, z, margin))))
        for times in (torch.ones(2, 1).double(), more)
    ]
    for one, other in zip(ridge_free[0][:3], ridge_free[1][:3], strict=True):
        torch.testing.assert_close(one, other)


def test_doubling_one_side_changes_only_the_weight_of_the_prior():
    z, margin = unit(4000, 6), margins(4000)
    sides = (margin > 3).double()
    weight = torch.stack([1 - sides, sides])
    once = Direction.of(side_sums(weight, z, margin))
    doubled = Direction.of(side_sums(weight * torch.tensor([[1.0], [2.0]]), z, margin))
    torch.testing.assert_close(doubled.centre, once.centre)
    torch.testing.assert_close(doubled.slope, once.slope, rtol=0.01, atol=1e-3)
    torch.testing.assert_close(doubled.level, once.level, rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", [-200.0, 200.0])
def test_a_stream_of_one_side_has_no_direction_and_finite_predictions(kind):
    z, margin = unit(500, 6), kind + margins(500)
    found = Direction.of(side_sums(side_weights(margin), z, margin))
    assert float(found.images) < 1e-6
    assert float(found.slope.abs().max()) < 1e-3
    assert bool(found.predict(z).isfinite().all())


def test_identical_images_have_a_direction_of_zero():
    z, margin = unit(1, 6).expand(300, 6), margins(300)
    found = Direction.of(side_sums(side_weights(margin), z, margin))
    assert float(found.slope.abs().max()) < 1e-9


def test_sums_of_parts_add_up():
    z, margin = unit(50, 6), margins(50)
    weight = side_weights(margin)
    whole = side_sums(weight, z, margin)
    parts = SideSums.empty(6)
    for rows in (slice(0, 20), slice(20, 50)):
        parts.add_(weight[:, rows], z[rows], margin[rows])
    torch.testing.assert_close(parts, whole)


def test_means_start_at_the_mean_of_all_and_end_at_the_mean_of_their_side():
    assert not SideSums.empty(6).means().any()
    z = unit(20_000, 6)
    weight = torch.stack([(z[:, 0] < 0).double(), (z[:, 0] >= 0).double()])
    means = side_sums(weight, z, torch.zeros(20_000).double()).means()
    torch.testing.assert_close(means[1], z[z[:, 0] >= 0].mean(0), rtol=0, atol=1e-3)
    first = side_sums(weight[:, :1], z[:1], torch.zeros(1).double()).means()
    assert torch.isclose(first / z[:1], torch.tensor([8 / 9, 1.0]).double()[:, None]).any(1).any()


def test_without_samples_the_prediction_is_the_middle_of_the_two_starts():
    assert Direction.none(6).predict(unit(3, 6)).tolist() == [sum(POOLED.start_margins) / 2] * 3


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def two_groups(count: int, *, apart: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Predictions and the weights of their sides."""
    generator = torch.Generator().manual_seed(seed)
    is_known = (torch.rand(count, generator=generator) < 0.5).double()
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return apart * is_known + noise, torch.stack([1 - is_known, is_known])


@given(rate=st.floats(-1e3, 1e3), middle=st.floats(-50, 50), predicted=st.floats(-1e4, 1e4))
def test_a_score_is_raised_by_at_most_the_log_of_one_over_the_share_of_near_images(rate, middle, predicted):
    found = float(raised(Likelihood(scalar(middle), scalar(rate)).log_ratio(scalar(predicted))))
    assert -50 <= found <= math.log(1 / POOLED.near_share) + 1e-12


def test_what_is_added_is_the_ratio_of_two_normals_with_a_share_of_near_images():
    unknown, known, deviation = -2.0, 4.0, 3.0
    likelihood = Likelihood(scalar((unknown + known) / 2), scalar((known - unknown) / deviation**2))
    u = torch.linspace(-9, 9, 19, dtype=torch.float64)
    normals = [
        torch.distributions.Normal(scalar(mean), scalar(deviation)).log_prob(u).exp() for mean in (unknown, known)
    ]
    mixed = (1 - POOLED.near_share) * normals[0] + POOLED.near_share * normals[1]
    torch.testing.assert_close(raised(likelihood.log_ratio(u)), (normals[1] / mixed).log())


def test_with_nothing_seen_the_ratio_is_zero():
    u = torch.linspace(-30, 30, 7, dtype=torch.float64)
    for likelihood in (Likelihood.none(), Likelihood.of(PredictionSums.empty(), scalar(0.0), 1)):
        torch.testing.assert_close(likelihood.log_ratio(u), torch.zeros_like(u), rtol=0, atol=1e-12)


def test_the_sides_of_clear_groups_are_found():
    predicted, weight = two_groups(20_000, apart=8)
    sums = prediction_sums(weight, predicted)
    found = Likelihood.of(sums, MANY, 20_000)
    earned = math.sqrt(float(bimodality(sums.powers)))
    assert earned > 0.8
    assert float(found.middle) == pytest.approx(4, abs=0.1)
    assert float(found.rate) == pytest.approx(8 * earned, rel=0.1)


def test_predictions_of_one_group_silence_the_pool():
    predicted, _ = two_groups(20_000, apart=0)
    weight = torch.sigmoid(torch.stack([-predicted, predicted]))  # easy images have the higher predictions
    sums = prediction_sums(weight, predicted)
    assert abs(float(Likelihood.of(sums, MANY, 20_000).rate)) < 0.1
    heard = sums._replace(powers=torch.stack([(predicted.sign() ** power).sum() for power in range(5)]))
    assert float(Likelihood.of(heard, MANY, 20_000).rate) > 0.5


def test_few_effective_images_earn_little_weight():
    predicted, weight = two_groups(2000, apart=8)
    sums = prediction_sums(weight, predicted)
    rates = [float(Likelihood.of(sums, scalar(count), 2000).rate) for count in (0.0, 16.0, 1e9)]
    assert rates[0] == 0
    assert rates[1] == pytest.approx(rates[2] / 2)


def test_a_prediction_weighs_its_place_in_the_stream():
    predicted, weight = two_groups(96, apart=3)
    sums, expected = PredictionSums.empty(), torch.zeros(2, 3, dtype=torch.float64)
    for start, stop in ((32, 64), (64, 128)):
        rows = slice(start - 32, stop - 32)
        sums.add_(weight[:, rows], predicted[rows], start)
        for u, w in zip(predicted[rows], weight[:, rows].T, strict=True):
            expected += stop * w[:, None] * torch.stack([u**0, u, u**2])
    torch.testing.assert_close(sums.sides, expected)
    assert float(sums.powers[0]) == 96
    torch.testing.assert_close(sums.powers[4], (predicted**4).sum())


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_two_points_of_any_weights_have_a_bimodality_of_one_and_a_normal_of_zero(share):
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(50_000, generator=generator) < share).double() * 7 + 20
    normal = 20 + 3 * torch.randn(50_000, generator=generator, dtype=torch.float64)
    found = [float(bimodality(torch.stack([(x**power).sum() for power in range(5)]))) for x in (points, normal)]
    assert found[0] == pytest.approx(1, abs=1e-3)
    assert found[1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("values", [[], [1.0, 9.0, 1.0], [5.0] * 100, [1e3] * 100])
def test_predictions_that_are_few_or_all_the_same_have_a_bimodality_from_zero_to_one(values):
    u = torch.tensor(values, dtype=torch.float64)
    found = float(bimodality(torch.stack([(u**power).sum() for power in range(5)])))
    assert 0 <= found <= (0 if len(values) < 5 else 1)
