"""Hypotheses are left out unread: those that are weigh nothing, and what is read weighs as in an exact product."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.margins import gumbel, normal
from unseen.threshold import mixture, nodes
from unseen.threshold.clear import ClearImages
from unseen.threshold.correction import OUTLIER
from unseen.threshold.mixture import EFFECTIVE_SAMPLES, KNOWN_SHARES, UNKNOWN
from unseen.threshold.nodes import NODES, Array
from unseen.threshold.weights import FEW


@cache
def exact_log_density() -> Array:
    """The log density of every hypothesis in float64, less its mean over all of them."""
    known, unknown = mixture.cells()
    mixed = torch.cat([share * known + (1 - share) * unknown for share in KNOWN_SHARES], dim=1)
    found = (mixed + OUTLIER / NODES).log()
    return (found - found.mean(1, keepdim=True)).numpy()


def exact_posterior(weighted: Array) -> Array:
    """The probability of every hypothesis by a literal product in float64."""
    fit = weighted @ exact_log_density() + np.tile(mixture.hypotheses().log_prior.numpy(), len(KNOWN_SHARES))
    weight = np.exp(fit - fit.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def prior(rows: int) -> Array:
    return mixture.log_prior_in_host_memory(ClearImages.none(), rows)


STREAMS = {
    "mixed": torch.cat([normal(900, 9, 5.4), gumbel(900, -6, 3)]),
    "known alone": normal(1500, 14, 5),
    "unknown alone": gumbel(1500, -8, 2.5),
    "few": torch.cat([normal(30, 9, 5.4), gumbel(20, -1, 3)]),
    "one place": torch.full((400,), 3.1, dtype=torch.float64),
    "two places": torch.tensor([-24.0, 36.0] * 200, dtype=torch.float64),
    "everywhere": torch.linspace(-30, 40, 1000, dtype=torch.float64),
}


def weighted(margins: Tensor) -> Tensor:
    return mixture.effective(nodes.counts(margins)[None])


@pytest.mark.parametrize("name", STREAMS)
def test_hypotheses_that_are_left_out_weigh_less_than_a_millionth(name):
    rows = weighted(STREAMS[name]).numpy()
    likely = mixture.table().screen.likely(rows, prior(1).reshape(1, -1))
    left_out = np.delete(exact_posterior(rows.astype(np.float64))[0], likely)
    assert left_out.sum() < 1e-6


@given(
    places=st.lists(st.tuples(st.integers(0, NODES - 1), st.floats(0, 1)), min_size=1, max_size=20),
    total=st.floats(0, EFFECTIVE_SAMPLES),
)
def test_no_product_is_further_off_than_its_bound(places, total):
    row = np.zeros((1, NODES), dtype=np.float32)
    for place, share in places:
        row[0, place] += share
    row *= total / max(1.0, row.sum())
    basis, bounds = mixture.table().screen
    told = row @ basis
    left = np.linalg.norm(row - told @ basis.T)
    off = np.abs(row.astype(np.float64) @ exact_log_density() - told @ bounds[:-1])
    assert (off <= left * bounds[-1] + 1e-3).all()  # of 25 nats from which a hypothesis is left out


@pytest.mark.parametrize("name", STREAMS)
def test_both_sides_are_weighted_as_by_an_exact_product(name):
    at_nodes = nodes.counts(STREAMS[name])
    found = mixture.posterior_in_host_memory(at_nodes, ClearImages.none())
    exact = exact_posterior(mixture.effective(at_nodes[None]).double().numpy())
    exact = exact.reshape(len(KNOWN_SHARES), UNKNOWN, -1).sum(0)
    np.testing.assert_allclose(found[0].numpy(), exact.sum(0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1].numpy(), exact.sum(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [1, 5, 60, 2000])
def test_weights_are_those_that_a_gpu_finds_by_reading_every_hypothesis(count):
    margins = torch.cat([normal(count, 9, 5), gumbel(count, -4, 3)])
    clear = ClearImages.of(
        margins, margins / 30, torch.ones(len(margins)).double(), torch.zeros(len(margins)).long(), 1
    )
    at_nodes = nodes.counts(margins)[None]
    found, wanted = (one(at_nodes, clear) for one in (mixture.posterior_in_host_memory, mixture.posterior_of_sides))
    for mine, full in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, full, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mixed", "known alone", "unknown alone"])
def test_of_a_stream_of_images_a_fraction_of_the_hypotheses_is_read(name):
    likely = mixture.table().screen.likely(weighted(STREAMS[name]).numpy(), prior(1).reshape(1, -1))
    assert len(likely) * FEW < mixture.log_density().shape[1]


def test_rows_are_weighted_as_each_by_itself():
    margins = STREAMS["mixed"]
    at_nodes = torch.stack([nodes.counts(margins[::step]) for step in range(1, 30)])
    together = mixture.posterior_in_host_memory(at_nodes, ClearImages.none())
    alone = [mixture.posterior_in_host_memory(row, ClearImages.none()) for row in at_nodes]
    for side, parts in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(side, torch.stack(parts), rtol=0, atol=1e-5)
