from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.margins import normal
from unseen.threshold import Adaptive
from unseen.threshold.clear import (
    CLEAR,
    MARGIN_DEVIATION,
    MARGIN_PER_CLARITY,
    MEAN_DEVIATION,
    ODD_DEVIATION,
    ODD_SHARE,
    OUTLIER,
    PURITY,
    UNKNOWN_ABOVE,
    ClearImages,
    log_density,
)
from unseen.threshold.nodes import AT_NODES, counts

NOT_TOLD = -torch.inf


def known_images(count: int, mean: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Margins and clarity of known images: normal, and margins follow clarity."""
    clarity = normal(count, 0, 0.24, seed=seed)
    return normal(count, mean, 3.0, seed=seed + 1) + MARGIN_PER_CLARITY * clarity, clarity


def near_images(count: int, mean: float, *, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Margins and clarity of near unknown images: few are clear."""
    clarity = normal(count, -0.26, 0.18, seed=seed)
    return normal(count, mean, 3.0, seed=seed + 1) + MARGIN_PER_CLARITY * (clarity + 0.26), clarity


def shuffled(*kinds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Margins and clarity of all images in random order."""
    margin, clarity = (torch.cat(parts) for parts in zip(*kinds, strict=True))
    order = torch.randperm(len(margin), generator=torch.Generator().manual_seed(0))
    return margin[order], clarity[order]


def after(margin: Tensor, clarity: Tensor) -> ClearImages:
    weight = torch.arange(1.0, len(margin) + 1, dtype=torch.float64)
    return ClearImages.none().then(ClearImages.of(margin, clarity, weight))


KNOWN, UNKNOWN = torch.linspace(-5, 25, 61, dtype=torch.float64), torch.linspace(-12, 6, 19, dtype=torch.float64)


def best_means(found: ClearImages) -> tuple[float, float]:
    """The most likely mean margins of unknown and of known images."""
    fit = found.log_likelihood(log_density(UNKNOWN, KNOWN))
    unknown, known = divmod(int(fit.argmax()), len(KNOWN))
    return float(UNKNOWN[unknown]), float(KNOWN[known])


def test_counts_are_those_of_the_clear_images():
    margin, clarity = torch.tensor([5.0, 9.0, 2.0, 7.0]).double(), torch.tensor([0.2, 0.5, CLEAR, NOT_TOLD]).double()
    found = after(margin, clarity)
    expected = [5 - 0.2 * MARGIN_PER_CLARITY, 9 - 0.5 * MARGIN_PER_CLARITY]
    assert float(found.number) == 2
    assert torch.allclose(found.at_nodes, counts(torch.tensor(expected).double(), torch.tensor([1.0, 2.0]).double()))


def test_images_without_clarity_say_nothing():
    found = after(normal(50, 9, 5), torch.full((50,), NOT_TOLD, dtype=torch.float64))
    assert not bool(found.log_likelihood(log_density(UNKNOWN, KNOWN)).any())


@pytest.mark.parametrize("mean", [3.0, 9.0, 16.0])
@pytest.mark.parametrize("near", [0, 500])
def test_the_mean_margin_of_known_images_is_found_among_near_ones(mean, near):
    found = after(*shuffled(known_images(500, mean), near_images(near, -1)))
    assert best_means(found)[1] == pytest.approx(mean, abs=1.2)


def test_clear_images_that_are_mostly_unknown_do_not_hide_the_known_ones():
    """Ten unknown images to a known one: two clear images of three are unknown, and have a mode of their own."""
    known, clear = known_images(300, 14), normal(200, 0.25, 0.05, seed=3)
    few = normal(200, -3 + UNKNOWN_ABOVE, 2.5, seed=4) + MARGIN_PER_CLARITY * clear, clear
    stream = shuffled(known, few, near_images(2800, -3))
    rule = Adaptive(derives_baseline=True)
    _, state = rule.learn(rule.start(), *stream)
    assert float((known[0] >= rule.threshold_of(state)).double().mean()) == pytest.approx(0.95, abs=0.04)
    at_nodes = state.clear.at_nodes
    assert float(at_nodes @ torch.from_numpy(AT_NODES)) / float(at_nodes.sum()) < 8  # a plain mean would mislead


def test_the_likelihood_is_that_of_a_plain_sum_over_images():
    margin, clarity = known_images(40, 9)
    found, pairs = after(margin, clarity), [(u, k) for u in (-6.0, 0.0) for k in (5.0, 9.0, 15.0)]
    clear = clarity > CLEAR
    number = int(clear.sum())
    weight = (torch.arange(1.0, 41, dtype=torch.float64) * clear)[clear]
    at_nodes = [(int(i), float(w)) for i, w in enumerate(found.at_nodes) if w > 0]
    assert float(weight.sum()) == pytest.approx(sum(w for _, w in at_nodes))

    def density(x: float, mean: float) -> float:
        off = (x - mean) / MARGIN_DEVIATION
        return math.exp(-off * off / 2) / (MARGIN_DEVIATION * math.sqrt(2 * math.pi))

    def pair(u: float, k: float, deviation: float) -> float:
        worth = MARGIN_DEVIATION**2 / (deviation**2 + MARGIN_DEVIATION**2 / number)
        total = 0.0
        for purity, prior in PURITY.items():
            fit = sum(
                w
                / float(weight.sum())
                * math.log(
                    purity * density(AT_NODES[i], k) + (1 - purity) * density(AT_NODES[i], u + UNKNOWN_ABOVE) + OUTLIER
                )
                for i, w in at_nodes
            )
            total += prior * math.exp(worth * fit)
        return total

    expected = torch.zeros(len(pairs), dtype=torch.float64)
    for share, deviation in ((1 - ODD_SHARE, MEAN_DEVIATION), (ODD_SHARE, ODD_DEVIATION)):
        some = torch.tensor([pair(u, k, deviation) for u, k in pairs], dtype=torch.float64)
        expected += share * some / some.max() / math.sqrt(deviation**2 + MARGIN_DEVIATION**2 / number)
    means = torch.tensor([-6.0, 0.0]).double(), torch.tensor([5.0, 9.0, 15.0]).double()
    got = found.log_likelihood(log_density(*means))
    assert torch.allclose(got.flatten(), expected.log())


@pytest.mark.parametrize(("mean", "near"), [(3.0, 0), (9.0, 1500)])
def test_clarity_tells_poor_known_images_from_a_mix_with_near_ones(mean, near):
    """The two streams have nearly the same margins: one broad mode."""
    known = known_images(1500, mean)
    margin, clarity = shuffled(known, near_images(near, -2))
    rule = Adaptive(derives_baseline=True)
    _, state = rule.learn(rule.start(), margin, clarity)
    _, blind = rule.learn(rule.start(), margin)
    kept, kept_blind = (float((known[0] >= rule.threshold_of(one)).double().mean()) for one in (state, blind))
    assert 0.9 <= kept <= 0.985
    assert abs(kept - 0.95) < abs(kept_blind - 0.95)


def test_margins_that_contradict_clarity_clearly_count_for_more():
    """Known images whose clarity is told half too low would lie 8 nats higher."""
    margin, clarity = known_images(1000, 9)
    far = normal(1000, -8, 2, seed=9), torch.full((1000,), -0.9, dtype=torch.float64)
    rule = Adaptive(derives_baseline=True)
    _, state = rule.learn(rule.start(), *shuffled((margin, clarity - 0.5), far))
    assert float((margin >= rule.threshold_of(state)).double().mean()) > 0.9


def test_any_division_of_a_stream_gives_the_same_threshold():
    margin, clarity = known_images(300, 6)
    rule = Adaptive(derives_baseline=True)
    _, whole = rule.learn(rule.start(), margin, clarity)
    _, first = rule.learn(rule.start(), margin[:77], clarity[:77])
    _, parts = rule.learn(first, margin[77:], clarity[77:])
    assert rule.threshold_of(parts) == pytest.approx(rule.threshold_of(whole), abs=1e-4)
