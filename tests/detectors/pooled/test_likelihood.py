from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.detectors.pooled.likelihood import NEAR_SHARE, Likelihood, PredictionSums, bimodality, fit_likelihood

MANY = torch.tensor(1e9, dtype=torch.float64)  # effective images: the pool has earned its weight


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def two_groups(count: int, *, apart: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Predictions and the weights of their sides."""
    generator = torch.Generator().manual_seed(seed)
    is_known = (torch.rand(count, generator=generator) < 0.5).double()
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return apart * is_known + noise, torch.stack([1 - is_known, is_known])


@given(rate=st.floats(-1e3, 1e3), middle=st.floats(-50, 50), predicted=st.floats(-1e4, 1e4))
def test_the_ratio_is_at_most_the_log_of_one_over_the_share_of_near_images(rate, middle, predicted):
    found = float(Likelihood(scalar(middle), scalar(rate)).log_ratio(scalar(predicted)))
    assert -50 <= found <= math.log(1 / NEAR_SHARE) + 1e-12


def test_the_ratio_is_that_of_two_normals_with_a_share_of_near_images():
    unknown, known, deviation = -2.0, 4.0, 3.0
    likelihood = Likelihood(scalar((unknown + known) / 2), scalar((known - unknown) / deviation**2))
    u = torch.linspace(-9, 9, 19, dtype=torch.float64)
    normals = [
        torch.distributions.Normal(scalar(mean), scalar(deviation)).log_prob(u).exp() for mean in (unknown, known)
    ]
    mixed = (1 - NEAR_SHARE) * normals[0] + NEAR_SHARE * normals[1]
    torch.testing.assert_close(likelihood.log_ratio(u), (normals[1] / mixed).log())


def test_with_nothing_seen_the_ratio_is_zero():
    u = torch.linspace(-30, 30, 7, dtype=torch.float64)
    for likelihood in (Likelihood.none(u), fit_likelihood(PredictionSums.empty(), scalar(0.0), 1)):
        torch.testing.assert_close(likelihood.log_ratio(u), torch.zeros_like(u), rtol=0, atol=1e-12)


def test_the_sides_of_clear_groups_are_found():
    predicted, weight = two_groups(20_000, apart=8)
    sums = PredictionSums.empty().updated(weight, predicted, torch.tensor(0))
    found = fit_likelihood(sums, MANY, 20_000)
    earned = math.sqrt(float(bimodality(sums.powers)))
    assert earned > 0.8
    assert float(found.middle) == pytest.approx(4, abs=0.1)
    assert float(found.rate) == pytest.approx(8 * earned, rel=0.1)


def test_predictions_of_one_group_silence_the_pool():
    predicted, _ = two_groups(20_000, apart=0)
    weight = torch.sigmoid(torch.stack([-predicted, predicted]))  # easy images have the higher predictions
    sums = PredictionSums.empty().updated(weight, predicted, torch.tensor(0))
    assert abs(float(fit_likelihood(sums, MANY, 20_000).rate)) < 0.1
    heard = sums._replace(powers=torch.stack([(predicted.sign() ** power).sum() for power in range(5)]))
    assert float(fit_likelihood(heard, MANY, 20_000).rate) > 0.5


def test_few_effective_images_earn_little_weight():
    predicted, weight = two_groups(2000, apart=8)
    sums = PredictionSums.empty().updated(weight, predicted, torch.tensor(0))
    rates = [float(fit_likelihood(sums, scalar(count), 2000).rate) for count in (0.0, 16.0, 1e9)]
    assert rates[0] == 0
    assert rates[1] == pytest.approx(rates[2] / 2)


def test_a_prediction_weighs_its_place_in_the_stream():
    predicted, weight = two_groups(96, apart=3)
    sums, expected = PredictionSums.empty(), torch.zeros(2, 3, dtype=torch.float64)
    for start, stop in ((32, 64), (64, 128)):
        rows = slice(start - 32, stop - 32)
        sums = sums.updated(weight[:, rows], predicted[rows], torch.tensor(start))
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
