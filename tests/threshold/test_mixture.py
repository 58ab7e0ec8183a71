from __future__ import annotations

import math

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
from unseen.threshold.mixture import MixtureFit
from unseen.threshold.nodes import HIGHEST, LOWEST, NODES, STEP


def fit(margins: Tensor, recall: float = 0.95) -> MixtureFit:
    at_nodes = nodes.counts(margins)
    return mixture.fit_mixture(at_nodes, at_nodes, recall)


def cells() -> tuple[Tensor, Tensor]:
    """The probability of every cell under every hypothesis, of known and of unknown images."""
    known, unknown, mean = mixture.sides()
    return known.repeat(1, mixture.UNKNOWN), unknown.repeat_interleave(len(mean), dim=1)


def accepted(margins: Tensor, threshold: Tensor) -> float:
    return float((margins >= threshold).double().mean())


def test_counts_divide_a_margin_between_its_neighbours():
    at_nodes = nodes.counts(torch.tensor([LOWEST, 0.1, HIGHEST - 0.1, HIGHEST, 1e9, -1e9], dtype=torch.float64))
    assert len(at_nodes) == NODES
    assert float(at_nodes.sum()) == pytest.approx(6)
    at_zero = round(-LOWEST / STEP)
    assert at_nodes[at_zero : at_zero + 2].tolist() == pytest.approx([0.8, 0.2])
    assert float(at_nodes[0]) == pytest.approx(2)
    assert float(at_nodes[-1]) == pytest.approx(2.8)


def test_counts_sum_the_weights_of_margins():
    margins, weight = normal(50, 3, 7), torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at_nodes = nodes.counts(margins, weight)
    assert float(at_nodes.sum()) == pytest.approx(float(weight.sum()))
    expected = sum(w * nodes.counts(m[None]) for m, w in zip(margins, weight, strict=True))
    torch.testing.assert_close(at_nodes, expected)


@given(margin=st.floats(-1e9, 1e9))
def test_interpolate_gives_back_a_linear_table_and_clamps_beyond_its_ends(margin):
    table = torch.linspace(LOWEST, HIGHEST, NODES, dtype=torch.float64)
    found = nodes.interpolate(table, torch.tensor([margin], dtype=torch.float64))
    assert float(found) == pytest.approx(min(HIGHEST, max(LOWEST, margin)), abs=1e-6)


def test_a_rounding_error_moves_the_threshold_by_as_little():
    margins = torch.cat([normal(40, 8, 4), torch.arange(-3.0, 3.0, 0.5).double()])  # some of them on a node
    before, after = (fit(margins + error).threshold for error in (-1e-6, 1e-6))
    assert float(abs(after - before)) < 1e-5


def test_every_hypothesis_is_a_distribution():
    known, unknown = cells()
    by_share = mixture.log_density().double().split(known.shape[1], dim=1)
    for share, found in zip(mixture.KNOWN_SHARES, by_share, strict=True):
        mixed = (share * known + (1 - share) * unknown + OUTLIER / NODES).log()
        torch.testing.assert_close(found - found[:, :1], mixed - mixed[:, :1], rtol=1e-5, atol=1e-5)
    for side in (known, unknown):
        assert bool((side >= 0).all())
        torch.testing.assert_close(side.sum(0), torch.ones_like(side[0]))


@pytest.mark.parametrize("recall", [0.0, 0.3, 0.8, 0.95, 0.99])
def test_the_wanted_share_of_known_images_reaches_a_margin(recall):
    known = mixture.sides().known.T.float().double()
    margin, edges = mixture.margin_reached(known, recall), nodes.LOWEST + nodes.STEP * (torch.arange(NODES) + 0.5)
    passed = [float(np.interp(one, edges, row.cumsum(0))) for one, row in zip(margin, known, strict=True)]
    assert passed == pytest.approx([1 - recall] * len(passed), abs=1e-6)


@given(margin=st.floats(-60, 60))
def test_a_table_is_interpolated_as_margins_are_divided_between_nodes(margin):
    table, one = normal(NODES, 0, 1), torch.tensor([margin], dtype=torch.float64)
    assert float(nodes.interpolate(table, one)) == pytest.approx(float(nodes.counts(one) @ table), abs=1e-7)


def test_the_posterior_finds_both_modes():
    margins = torch.cat([normal(1000, 9, 5.4), gumbel(1000, -6, 3)])
    weight, grid = mixture.posterior(nodes.counts(margins), ClearImages.none()).double(), mixture.hypotheses()
    assert float(weight.sum()) == pytest.approx(1)
    of_shapes = weight.sum(0)
    assert float(of_shapes @ grid.unknown_mean) == pytest.approx(-6, abs=1)
    assert float(of_shapes @ grid.unknown_deviation) == pytest.approx(3, abs=1)
    assert float(of_shapes @ grid.known_mean) == pytest.approx(9, abs=1.5)
    shares = weight.sum(1) @ torch.tensor(mixture.KNOWN_SHARES, dtype=torch.float64)
    assert float(shares) == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(("share", "least"), [(0.3, 0.89), (0.5, 0.91), (0.7, 0.91)])
@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_stream_keeps_the_wanted_share_and_less_where_known_images_are_few(share, least, seed):
    known = normal(round(2000 * share), 9, 5.4, seed=seed)
    unknown = gumbel(2000 - len(known), -6, 3, seed=seed + 10)
    threshold = fit(torch.cat([known, unknown])).threshold
    assert least <= accepted(normal(20_000, 9, 5.4, seed=50), threshold) <= 0.98
    assert accepted(unknown, threshold) < 0.1


@pytest.mark.parametrize("mean", [7, 9, 13])
def test_known_images_alone_are_accepted(mean):
    known = normal(3000, mean, 5.4)
    assert accepted(known, fit(known).threshold) > 0.91


@pytest.mark.parametrize(("mean", "deviation"), [(-8, 3), (-6, 3), (-2, 2), (0, 2)])
def test_unknown_images_alone_are_rejected(mean, deviation):
    unknown = gumbel(3000, mean, deviation)
    assert accepted(unknown, fit(unknown).threshold) < 0.2


def test_before_any_image_the_threshold_is_that_of_the_prior():
    empty = fit(torch.zeros(0, dtype=torch.float64))
    weight = mixture.hypotheses().log_prior.softmax(0)
    known = cells()[0] @ weight
    assert float(empty.threshold) == pytest.approx(float(mixture.margin_reached(known, 0.95)), abs=1e-4)
    assert -2 < float(empty.threshold) < 4


def test_a_higher_recall_is_a_lower_threshold():
    margins = torch.cat([normal(100, 9, 5.4), gumbel(100, -6, 3)])
    thresholds = [float(fit(margins, recall).threshold) for recall in (0.5, 0.8, 0.9, 0.95)]
    assert thresholds == sorted(thresholds, reverse=True)


@given(
    mean=st.floats(-40, 60),
    deviation=st.floats(0, 30),
    count=st.integers(0, 3000),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_probabilities_are_finite_and_never_fall_with_the_margin(mean, deviation, count, share, seed):
    known = normal(round(count * share), mean, deviation, seed=seed)
    found = fit(torch.cat([known, gumbel(count - len(known), -4, 3, seed=seed)]))
    assert math.isfinite(float(found.threshold))
    assert bool(((found.probability >= 0) & (found.probability <= 1)).all())
    assert bool((found.probability.diff() >= -1e-12).all())  # two tables that never fall are averaged, and rounded


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_images_far_above_the_unknown_are_known_with_near_certainty(share):
    known = normal(round(5000 * share), 9, 5.4)
    found = fit(torch.cat([known, gumbel(5000 - len(known), -6, 3)]))
    for margin, least in ((12.0, 0.94), (36.0, 0.97)):
        assert float(nodes.interpolate(found.probability, torch.tensor([margin]))) > least


@pytest.mark.parametrize("value", [-1e6, -3.0, 0.0, 3.0, 1e6])
def test_identical_margins_give_a_finite_threshold(value):
    assert math.isfinite(float(fit(torch.full((300,), value, dtype=torch.float64)).threshold))


def test_recall_interval_is_that_of_the_distributions_without_the_rarest():
    known = mixture.sides().known
    weight = torch.rand(2, known.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1)).pow(6)
    found = mixture.recall_interval(torch.tensor([-1.25, 3.0], dtype=torch.float64), weight)
    cells = LOWEST + STEP * (np.arange(NODES + 1) - 0.5)  # their edges
    for row, threshold in enumerate((-1.25, 3.0)):
        below = np.stack([np.interp(threshold, cells, np.cumsum([0, *column])) for column in known.T.numpy()])
        share, rank = np.sort(1 - below), np.argsort(1 - below)
        total = np.cumsum(weight[row].numpy()[rank]) / weight[row].sum().item()
        expected = [share[np.searchsorted(total, tail)] for tail in (0.025, 0.975)]
        assert found[row].tolist() == pytest.approx(expected, abs=0.003)  # nodes against edges


@pytest.mark.parametrize("recall", [0.8, 0.95])
def test_recall_interval_holds_the_recall_and_narrows_where_modes_lie_apart(recall):
    before = mixture.fit_mixture(
        torch.zeros(NODES, dtype=torch.float64), torch.zeros(NODES, dtype=torch.float64), recall
    )
    margins = torch.cat([normal(2000, 12, 5.2), gumbel(2000, -8, 3)])
    after = fit(margins, recall)
    for low, high in (before.recall, after.recall):
        assert low < recall < high
    assert after.recall.diff() < before.recall.diff()
    assert after.recall[0] < accepted(margins[:2000], after.threshold) < after.recall[1]
