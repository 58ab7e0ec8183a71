from __future__ import annotations

import math

import pytest
import torch

from unseen.threshold import mixture


def normal(count: int, mean: float, deviation: float, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + deviation * torch.randn(count, generator=generator, dtype=torch.float64)


def chance(count: int, mean: float, deviation: float, *, seed: int = 1) -> torch.Tensor:
    """Return Gumbel draws: what unknown images score."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    scale = deviation * math.sqrt(6) / math.pi
    return mean - scale * mixture.EULER - scale * torch.log(-torch.log(uniform))


def kept(margins: torch.Tensor, line: torch.Tensor) -> float:
    return float((margins >= line).double().mean())


def test_counts_share_a_margin_between_its_neighbours():
    nodes = mixture.counts(torch.tensor([-12.0, 0.1, 31.9, 32.0, 1e9, -1e9]))
    assert float(nodes.sum()) == pytest.approx(6)
    at_zero = round(-mixture.LOWEST / mixture.STEP)
    assert nodes[at_zero : at_zero + 2].tolist() == pytest.approx([0.8, 0.2])
    assert float(nodes[0]) == pytest.approx(2)
    assert float(nodes[-1]) == pytest.approx(2.8)


def test_a_rounding_error_moves_the_line_by_as_little():
    margins = torch.cat([normal(40, 8, 4), torch.arange(-3.0, 3.0, 0.5).double()])  # some of them on a node
    before, after = (mixture.recall_threshold(margins + error, 0.95) for error in (-1e-6, 1e-6))
    assert float(abs(after - before)) < 1e-5


def test_every_hypothesis_is_a_distribution():
    total = mixture.log_density().double().exp().sum(0)
    assert torch.allclose(total, torch.full_like(total, 1 + mixture.OUTLIER), atol=1e-5)


@pytest.mark.parametrize("recall", [0.8, 0.95, 0.99])
def test_quantiles_are_where_the_hypothesis_keeps_the_share(recall):
    passed = 1 - mixture.hypotheses().known_below(mixture.quantiles(recall).unsqueeze(0))
    assert torch.allclose(passed, torch.full_like(passed, recall), atol=1e-6)


def test_known_images_never_lie_below_what_chance_gives():
    x = torch.tensor([[-2.0], [0.0], [3.0]], dtype=torch.float64)
    m = mixture.hypotheses()
    chance = mixture.gumbel_of(x, m.unknown_mean, m.unknown_deviation)
    assert bool((m.known_below(x) <= chance + 1e-12).all())


def test_the_posterior_finds_the_modes_of_a_clear_stream():
    margins = torch.cat([normal(600, 11, 4), chance(1200, 0, 1.5)])
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
def test_a_mixed_stream_keeps_what_was_wanted(mean, deviation, centre, spread, recall, share):
    known = normal(round(3000 * share), mean, deviation)
    unknown = chance(3000 - len(known), centre, spread)
    line = mixture.recall_threshold(torch.cat([known, unknown]), recall)
    assert kept(normal(20_000, mean, deviation, seed=5), line) == pytest.approx(recall, abs=0.045)
    assert kept(unknown, line) < 0.15


@pytest.mark.parametrize(("mean", "deviation"), [(8, 3.6), (10, 4), (13, 4.3)])
def test_known_images_alone_are_kept(mean, deviation):
    known = normal(3000, mean, deviation)
    assert kept(known, mixture.recall_threshold(known, 0.95)) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("centre", "spread"), [(-2, 1.2), (0, 1), (0, 2), (1, 1.5)])
def test_unknown_images_alone_are_rejected(centre, spread):
    unknown = chance(3000, centre, spread)
    assert kept(unknown, mixture.recall_threshold(unknown, 0.95)) < 0.2


def test_before_any_image_the_line_stands_where_known_images_usually_begin():
    line = mixture.recall_threshold(torch.zeros(0, dtype=torch.float64), 0.95)
    assert 1 < float(line) < 5


def test_a_higher_recall_is_a_lower_line():
    margins = torch.cat([normal(100, 9, 4), chance(100, 0, 1.5)])
    lines = [float(mixture.recall_threshold(margins, recall)) for recall in (0.5, 0.8, 0.9, 0.95, 0.99)]
    assert lines == sorted(lines, reverse=True)


@pytest.mark.parametrize("value", [-1e6, -3.0, 0.0, 3.0, 1e6])
def test_identical_margins_draw_a_finite_line(value):
    assert math.isfinite(float(mixture.recall_threshold(torch.full((300,), value, dtype=torch.float64), 0.95)))
