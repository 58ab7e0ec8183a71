"""What must hold of any predictions; test_detector.py has the formulas, sample by sample."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.sides import Likelihood, PredictionSums, bimodality, raised


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def powers(u: torch.Tensor) -> torch.Tensor:
    return torch.stack([(u**power).sum() for power in range(5)])


@given(rate=st.floats(-1e3, 1e3), middle=st.floats(-50, 50), predicted=st.floats(-1e4, 1e4))
def test_a_score_is_raised_by_at_most_the_log_of_one_over_the_share_of_near_images(rate, middle, predicted):
    found = float(raised(Likelihood(scalar(middle), scalar(rate)).log_ratio(scalar(predicted))))
    assert -50 <= found <= math.log(1 / POOLED.near_share) + 1e-12


def test_predictions_of_one_group_silence_the_pool():
    predicted = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = PredictionSums.empty()
    sums.add_(torch.sigmoid(torch.stack([-predicted, predicted])), predicted, 0)  # easy images are predicted higher
    assert abs(float(Likelihood.of(sums, scalar(1e9), 20_000).rate)) < 0.1
    heard = sums._replace(powers=powers(predicted.sign()))
    assert float(Likelihood.of(heard, scalar(1e9), 20_000).rate) > 0.5


@pytest.mark.parametrize("values", [[], [1.0, 9.0, 1.0], [5.0] * 100, [1e3] * 100])
def test_predictions_that_are_few_or_all_the_same_have_a_bimodality_from_zero_to_one(values):
    found = float(bimodality(powers(torch.tensor(values, dtype=torch.float64))))
    assert 0 <= found <= (0 if len(values) < 5 else 1)
