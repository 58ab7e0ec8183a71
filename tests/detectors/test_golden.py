"""Scores of every detector on the demo pack are those of unseen 0.1."""

from __future__ import annotations

import pytest
import torch

from helpers import golden
from helpers.methods import ALL

STORED = 1e-5  # of scores up to 62, stored as float32: in float64 machines agree to far less
ROUNDING = 1e-3  # of scores in float32, which methods that learn from every sample carry on and make larger


IN_FLOAT32 = ("pooled", "online", "neglabel")


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        *((name, torch.float64, STORED) for name in sorted(ALL)),
        *((name, torch.float32, ROUNDING) for name in IN_FLOAT32),
    ],
)
def test_scores_on_the_demo_pack_are_the_stored_ones(name, dtype, tolerance):
    expected, got = golden.stored(name), golden.outputs(name, dtype)
    assert expected.keys() == got.keys()
    for field, column in got.items():
        torch.testing.assert_close(column.double(), expected[field].double(), rtol=0, atol=tolerance, msg=field)
