from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.streams import space, stream
from unseen import odds


@given(rows=st.integers(0, 40), classes=st.sampled_from([1, 2, 7, 60, 40_000]), seed=st.integers(0, 99))
def test_top_is_the_softmax_maximum_against_the_rest(rows, classes, seed):
    rows = min(rows, 8) if classes > 60 else rows  # of the widest, three fit into the cache at once
    logits = 20 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
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


def test_logit_inverts_the_sigmoid_and_is_infinite_at_the_ends():
    assert odds.logit(0.95) == pytest.approx(math.log(19))
    assert odds.logit(0.5) == 0
    assert (odds.logit(0.0), odds.logit(1.0)) == (-math.inf, math.inf)


def test_mcm_and_neglabel_are_the_log_odds_of_equations_2_and_3():
    labels = space()
    z = stream(labels)
    text = odds.text_logits(labels, z, tau=0.1)
    known, both = z @ labels.id_anchors.T / 0.1, z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T / 0.1
    share = known.exp().sum(1) / both.exp().sum(1)
    torch.testing.assert_close(torch.sigmoid(odds.neglabel(text)), share)
    torch.testing.assert_close(torch.sigmoid(odds.mcm(text)), torch.softmax(known, 1).max(1).values)
