from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.streams import unit
from unseen.detectors.pooled.sides import (
    BOUNDARY,
    RIDGE,
    SLOPE,
    START_MARGIN,
    Direction,
    SideSums,
    factor_solution,
    fit_direction,
    gradient_solution,
    side_weights,
)


def margins(count: int, *, seed: int = 0) -> Tensor:
    return 3 + 6 * torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weighted_ridge(weight: Tensor, z: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and centre of the regression in which each side weighs one half, from its definition."""
    rows = (weight / weight.sum(1, keepdim=True)).mean(0)
    effective = 4 / (1 / weight.sum(1)).sum()
    centre = (rows[:, None] * z).sum(0)
    off = z - centre
    scatter = off.T @ torch.diag(rows) @ off + RIDGE / effective * torch.eye(z.shape[1], dtype=z.dtype)
    return torch.linalg.solve(scatter, off.T @ (rows * (margin - rows @ margin))), centre


def test_side_weights_add_to_one_and_are_equal_at_the_boundary():
    weight = side_weights(torch.tensor([BOUNDARY, BOUNDARY + 1 / SLOPE, -1e3, 1e3]).double())
    torch.testing.assert_close(weight.sum(0), torch.ones(4).double())
    assert weight[:, 0].tolist() == [0.5, 0.5]
    assert float((weight[1, 1] / weight[0, 1]).log()) == pytest.approx(1)
    assert bool(((weight >= 0) & (weight <= 1)).all())


@pytest.mark.parametrize(("count", "dim"), [(40, 8), (5, 8), (300, 3)])
def test_fit_direction_is_a_ridge_regression_in_which_both_sides_weigh_the_same(count, dim):
    z, margin = unit(count, dim), margins(count)
    weight = side_weights(margin)
    found = fit_direction(SideSums.empty(dim).updated(weight, z, margin))
    slope, centre = weighted_ridge(weight, z, margin)
    torch.testing.assert_close(found.slope, slope)
    torch.testing.assert_close(found.centre, centre)
    assert float(found.images) == pytest.approx(4 / float((1 / weight.sum(1)).sum()))


@pytest.mark.parametrize(("count", "dim"), [(40, 8), (5, 8), (300, 30)])
def test_every_way_to_solve_for_the_direction_gives_the_same_one(count, dim):
    z, margin = unit(count, dim), margins(count)
    sums = SideSums.empty(dim).updated(side_weights(margin), z, margin)
    exact = fit_direction(sums)
    for options in ({"dtype": torch.float32}, {"dtype": torch.float32, "few": True}):
        torch.testing.assert_close(fit_direction(sums, **options), exact, rtol=1e-7, atol=1e-7)


def test_a_system_that_takes_too_many_steps_is_left_to_a_factor():
    hard = torch.diag(torch.logspace(-6, 0, 200, dtype=torch.float64))
    right = torch.ones(200, dtype=torch.float64)
    assert gradient_solution(hard, right) is None
    torch.testing.assert_close(hard @ factor_solution(hard, right, dtype=torch.float32), right)
    easy = torch.eye(200, dtype=torch.float64)
    assert torch.equal(gradient_solution(easy, right), right)
    assert not gradient_solution(easy, torch.zeros_like(right)).any()


@pytest.mark.parametrize("side", [0, 1])
def test_more_images_of_one_side_do_not_move_the_direction(side):
    z, margin = unit(400, 6), margins(400)
    sides = (margin > 3).double()
    weight = torch.stack([1 - sides, sides])  # each image is of one side only
    more = torch.ones(2, 1).double()
    more[side] = 10
    ridge_free = [
        fit_direction(SideSums(*(1e9 * part for part in SideSums.empty(6).updated(times * weight, z, margin))))
        for times in (torch.ones(2, 1).double(), more)
    ]
    for one, other in zip(ridge_free[0][:3], ridge_free[1][:3], strict=True):
        torch.testing.assert_close(one, other)


def test_doubling_one_side_changes_only_the_weight_of_the_prior():
    z, margin = unit(4000, 6), margins(4000)
    sides = (margin > 3).double()
    weight = torch.stack([1 - sides, sides])
    once = fit_direction(SideSums.empty(6).updated(weight, z, margin))
    doubled = fit_direction(SideSums.empty(6).updated(weight * torch.tensor([[1.0], [2.0]]), z, margin))
    torch.testing.assert_close(doubled.centre, once.centre)
    torch.testing.assert_close(doubled.slope, once.slope, rtol=0.01, atol=1e-3)
    torch.testing.assert_close(doubled.level, once.level, rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", [-200.0, 200.0])
def test_a_stream_of_one_side_has_no_direction_and_finite_predictions(kind):
    z, margin = unit(500, 6), kind + margins(500)
    found = fit_direction(SideSums.empty(6).updated(side_weights(margin), z, margin))
    assert float(found.images) < 1e-6
    assert float(found.slope.abs().max()) < 1e-3
    assert bool(found.predict(z).isfinite().all())


def test_identical_images_have_a_direction_of_zero():
    z, margin = unit(1, 6).expand(300, 6), margins(300)
    found = fit_direction(SideSums.empty(6).updated(side_weights(margin), z, margin))
    assert float(found.slope.abs().max()) < 1e-9


def test_sums_of_parts_add_up():
    z, margin = unit(50, 6), margins(50)
    weight = side_weights(margin)
    whole = SideSums.empty(6).updated(weight, z, margin)
    parts = SideSums.empty(6).updated(weight[:, :20], z[:20], margin[:20]).updated(weight[:, 20:], z[20:], margin[20:])
    torch.testing.assert_close(parts, whole)


def test_means_start_at_the_mean_of_all_and_end_at_the_mean_of_their_side():
    empty = SideSums.empty(6)
    assert not empty.means().any()
    z = unit(20_000, 6)
    weight = torch.stack([(z[:, 0] < 0).double(), (z[:, 0] >= 0).double()])
    means = empty.updated(weight, z, torch.zeros(20_000).double()).means()
    torch.testing.assert_close(means[1], z[z[:, 0] >= 0].mean(0), rtol=0, atol=1e-3)
    first = empty.updated(weight[:, :1], z[:1], torch.zeros(1).double()).means()
    assert torch.isclose(first / z[:1], torch.tensor([8 / 9, 1.0]).double()[:, None]).any(1).any()


def test_without_samples_the_prediction_is_the_middle_of_the_two_starts():
    none = Direction.none(torch.zeros(2, 6).double())
    assert none.predict(unit(3, 6)).tolist() == [sum(START_MARGIN) / 2] * 3
