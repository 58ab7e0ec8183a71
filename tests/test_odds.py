from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.streams import unit
from unseen import odds


@given(rows=st.integers(0, 40), classes=st.integers(1, 60), seed=st.integers(0, 99), cache=st.integers(1, 200))
def test_top_is_the_softmax_maximum_against_the_rest(rows, classes, seed, cache):
    logits = 20 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(odds, "CACHE", cache)  # however many rows fit at once
        best, energy = odds.top(logits), odds.energy(logits)
    probability, label = torch.softmax(logits, 1).max(1)
    assert torch.equal(best.label, label)
    torch.testing.assert_close(best.energy, torch.logsumexp(logits, 1))
    torch.testing.assert_close(energy, torch.logsumexp(logits, 1))
    if classes > 1:
        torch.testing.assert_close(torch.sigmoid(best.log_odds), probability)


def test_log_odds_rank_where_probabilities_tie():
    logits = torch.tensor([[20.0, 0.0], [30.0, 0.0], [80.0, 0.0]])
    assert torch.softmax(logits, 1).max(1).values.unique().tolist() == [1.0]
    assert odds.top(logits).log_odds.tolist() == [20, 30, 80]


@pytest.mark.parametrize("classes", [3, 1023, 1024, 2500])
def test_one_sample_reads_what_a_batch_reads(classes):
    z, rows = unit(5, 24), unit(classes, 24, seed=1)
    together = odds.logits(z, rows, tau=0.01)
    torch.testing.assert_close(together, z @ rows.T / 0.01, rtol=0, atol=1e-10)
    alone = torch.cat([odds.logits(sample, rows, tau=0.01) for sample in z.split(1)])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-10)


def test_logit_inverts_the_sigmoid_and_is_infinite_at_the_ends():
    assert odds.logit(0.95) == pytest.approx(math.log(19))
    assert odds.logit(0.5) == 0
    assert (odds.logit(0.0), odds.logit(1.0)) == (-math.inf, math.inf)


def test_one_sample_passes_gradients_on():
    z, rows = unit(1, 24), unit(6, 24, seed=1).requires_grad_()
    odds.logits(z, rows, tau=0.5).sum().backward()
    torch.testing.assert_close(rows.grad, (z / 0.5).expand(6, -1))
