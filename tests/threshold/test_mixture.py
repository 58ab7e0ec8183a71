from __future__ import annotations

import math

import pytest
import torch

from helpers.margins import gumbel, normal
from unseen.threshold import mixture


def accepted(margins: torch.Tensor, threshold: torch.Tensor) -> float:
    return float((margins >= threshold).double().mean())


def test_counts_divide_a_margin_between_its_neighbours():
    nodes = mixture.counts(torch.tensor([-12.0, 0.1, 31.9, 32.0, 1e9, -1e9]))
    assert float(nodes.sum()) == pytest.approx(6)
    at_zero = round(-mixture.LOWEST / mixture.STEP)
    assert nodes[at_zero : at_zero + 2].tolist() == pytest.approx([0.8, 0.2])
    assert float(nodes[0]) == pytest.approx(2)
    assert float(nodes[-1]) == pytest.approx(2.8)


def test_a_rounding_error_moves_the_threshold_by_as_little():
    margins = torch.cat([normal(40, 8, 4), torch.arange(-3.0, 3.0, 0.5).double()])  # some of them on a node
    before, after = (mixture.recall_threshold(margins + error, 0.95) for error in (-1e-6, 1e-6))
    assert float(abs(after - before)) < 1e-5


def test_every_hypothesis_is_a_distribution():
    total = mixture.log_density().double().exp().sum(0)
    assert torch.allclose(total, torch.full_like(total, 1 + mixture.OUTLIER), atol=1e-5)


@pytest.mark.parametrize("recall", [0.8, 0.95, 0.99])
def test_the_wanted_share_of_known_images_reaches_each_quantile(recall):
    passed = 1 - mixture.hypotheses().known_below(mixture.quantiles(recall).unsqueeze(0))
    assert torch.allclose(passed, torch.full_like(passed, recall), atol=1e-6)


def test_known_images_never_lie_below_what_chance_gives():
    x = torch.tensor([[-2.0], [0.0], [3.0]], dtype=torch.float64)
    m = mixture.hypotheses()
    chance = mixture.gumbel_of(x, m.unknown_mean, m.unknown_deviation)
    assert bool((m.known_below(x) <= chance + 1e-12).all())


def test_the_posterior_finds_both_distributions_of_a_clear_stream():
    margins = torch.cat([normal(600, 11, 4), gumbel(1200, 0, 1.5)])
    weight, m = mixture.posterior(margins), mixture.hypotheses()
    assert float(weight.sum()) == pytest.approx(1)
    by_hypothesis = weight.sum(1)
    assert float(by_hypothesis @ m.unknown_mean) == pytest.approx(0, abs=0.5)
    assert float(by_hypothesis @ m.known_mean) == pytest.approx(11, abs=1)
    assert float(by_hypothesis @ m.known_deviation) == pytest.approx(4, abs=0.7)
    known_share = weight.sum(0) @ torch.tensor(mixture.KNOWN_SHARES, dtype=torch.float64)
    assert float(known_share) == pytest.approx(1 / 3, abs=0.12)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("recall", [0.9, 0.95])
@pytest.mark.parametrize(
    ("mean", "deviation", "centre", "spread"), [(10, 4, 0, 1.5), (8, 3.6, -1, 1.5), (9, 3, 0, 1.2)]
)
def test_a_mixed_stream_accepts_the_wanted_share(mean, deviation, centre, spread, recall, share):
    known = normal(round(3000 * share), mean, deviation)
    unknown = gumbel(3000 - len(known), centre, spread)
    threshold = mixture.recall_threshold(torch.cat([known, unknown]), recall)
    assert accepted(normal(20_000, mean, deviation, seed=5), threshold) == pytest.approx(recall, abs=0.045)
    assert accepted(unknown, threshold) < 0.15


@pytest.mark.parametrize(("mean", "deviation"), [(8, 3.6), (10, 4), (13, 4.3)])
def test_known_images_alone_are_accepted(mean, deviation):
    known = normal(3000, mean, deviation)
    assert accepted(known, mixture.recall_threshold(known, 0.95)) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("centre", "spread"), [(-2, 1.2), (0, 1), (0, 2), (1, 1.5)])
def test_unknown_images_alone_are_rejected(centre, spread):
    unknown = gumbel(3000, centre, spread)
    assert accepted(unknown, mixture.recall_threshold(unknown, 0.95)) < 0.2


def test_before_any_image_the_threshold_is_that_of_the_prior():
    threshold = mixture.recall_threshold(torch.zeros(0, dtype=torch.float64), 0.95)
    assert 1 < float(threshold) < 5


def test_a_higher_recall_is_a_lower_threshold():
    margins = torch.cat([normal(100, 9, 4), gumbel(100, 0, 1.5)])
    thresholds = [float(mixture.recall_threshold(margins, recall)) for recall in (0.5, 0.8, 0.9, 0.95, 0.99)]
    assert thresholds == sorted(thresholds, reverse=True)


@pytest.mark.parametrize("value", [-1e6, -3.0, 0.0, 3.0, 1e6])
def test_identical_margins_give_a_finite_threshold(value):
    assert math.isfinite(float(mixture.recall_threshold(torch.full((300,), value, dtype=torch.float64), 0.95)))
