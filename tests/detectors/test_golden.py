"""Scores of every detector on the demo pack are those of unseen 0.1."""

from __future__ import annotations

import pytest
import torch

from helpers import golden
from helpers.methods import ALL

# Machines round products differently: a logit is a cosine divided by tau = 0.01, so one ulp of a cosine near 1 is a
# hundred in the score; four of them, and the few samples that a rounding error may route otherwise, are allowed.
TOLERANCE = 4 * 100 * torch.finfo(torch.float32).eps
AGREEING = 0.99


@pytest.mark.parametrize("name", sorted(ALL))
def test_scores_on_the_demo_pack_are_the_stored_ones(name):
    expected, got = golden.stored(name), golden.outputs(name)
    assert expected.keys() == got.keys()
    for field, column in got.items():
        is_close = (column.double() - expected[field].double()).abs() <= TOLERANCE
        assert float(is_close.double().mean()) >= AGREEING, field
