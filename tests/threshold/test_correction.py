from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.margins import gumbel, normal
from unseen.threshold import correction, mixture, nodes
from unseen.threshold.correction import EXPECTED_IMAGES, OUTLIER, ROUNDS, SHARE_IMAGES, SHARE_ROUNDS
from unseen.threshold.nodes import NODES, Array


def expected_sides(known_mean: float = 9.5, unknown_mean: float = -6.0) -> tuple[torch.Tensor, torch.Tensor]:
    grid, (known, unknown, mean) = mixture.hypotheses(), mixture.sides()
    cells = known.repeat(1, mixture.UNKNOWN), unknown.repeat_interleave(len(mean), dim=1)
    pick = (grid.known_mean == known_mean) & (grid.shape == mixture.NORMAL)
    pick &= (grid.unknown_mean == unknown_mean) & (grid.unknown_deviation == 2.5)
    return tuple(side[:, pick][:, 1] for side in cells)  # type: ignore[return-value]


def plain_ratio(known: Array, unknown: Array) -> Array:
    """The ratio by loops: from the peak outwards it may only fall to the left and rise to the right."""
    ratio, peak = known / (unknown + OUTLIER / NODES), int(known.argmax())
    for i in range(peak - 1, -1, -1):
        ratio[i] = min(ratio[i], ratio[i + 1])
    for i in range(peak + 1, NODES):
        ratio[i] = max(ratio[i], ratio[i - 1])
    return ratio


def plain_correction(known: Array, unknown: Array, counted: Array) -> tuple[Array, Array]:
    def chance(share: float, ratio: Array) -> Array:
        return share * ratio / (share * ratio + 1 - share)

    def share_with(probability: Array) -> float:
        return ((counted * probability).sum() + SHARE_IMAGES) / (counted.sum() + 2 * SHARE_IMAGES)

    ratio, share, first = plain_ratio(known.copy(), unknown), 0.5, known
    for _ in range(SHARE_ROUNDS):
        share = share_with(chance(share, ratio))
    for _ in range(ROUNDS):
        probability = chance(share, ratio)
        share = share_with(probability)
        known = EXPECTED_IMAGES * first + counted * probability
        other = EXPECTED_IMAGES * unknown + counted * (1 - probability)
        known, other = known / known.sum(), other / other.sum()
        ratio = plain_ratio(known.copy(), other)
    return known, other


@pytest.mark.parametrize("count", [0, 7, 900])
def test_correction_equals_plain_expectation_maximisation(count):
    at_nodes = nodes.counts(torch.cat([normal(count, 6, 7), gumbel(2 * count, -2, 3)]))
    known, unknown = expected_sides()
    found = correction.corrected(known, unknown, at_nodes)
    wanted = plain_correction(known.numpy(), unknown.numpy(), at_nodes.numpy())
    np.testing.assert_allclose(found.known.numpy(), wanted[0], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(found.unknown.numpy(), wanted[1], rtol=1e-9, atol=1e-15)


def test_without_images_both_sides_lie_as_expected():
    known, unknown = expected_sides()
    found = correction.corrected(known, unknown, torch.zeros(NODES, dtype=torch.float64))
    torch.testing.assert_close(found.known, known)


def test_known_images_of_any_shape_are_found_where_the_modes_lie_apart():
    shape = 2 + 18 * torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))  # no normal
    at_nodes = nodes.counts(torch.cat([shape, gumbel(4000, -10, 2)]))
    found = correction.corrected(*expected_sides(), at_nodes)
    assert float(mixture.margin_reached(found.known, 0.95)) == pytest.approx(2.9, abs=0.5)
    assert float(mixture.margin_reached(expected_sides()[0], 0.95)) < 1.5  # what the mixture expects


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_known_images_is_estimated(share):
    ratio = correction.likelihood_ratio(*(side.numpy() for side in expected_sides()))
    drawn = torch.cat([normal(round(2000 * share), 9.5, 5.4), gumbel(round(2000 * (1 - share)), -6, 2.5)])
    assert correction.share_of_known(nodes.counts(drawn).numpy(), ratio).item() == pytest.approx(share, abs=0.05)
    assert correction.share_of_known(np.zeros(NODES), ratio).item() == 0.5


def far_history() -> correction.Corrected:
    """Where images lie in a stream whose unknown images were far from all names."""
    at_nodes = nodes.counts(torch.cat([normal(3000, 11, 5.5), gumbel(3000, -14, 2)]))
    return correction.corrected(*expected_sides(11.0, -14.0), at_nodes)


def probability_at(margin: float, recent: torch.Tensor, found: correction.Corrected) -> float:
    probability = correction.probability_now(recent, found, mixture.typical_unknown())
    return float(nodes.interpolate(probability, torch.tensor([margin])))


def test_near_unknown_images_after_far_ones_lower_the_probability_of_being_known():
    near = torch.cat([normal(150, 11, 5.5), gumbel(450, 1, 3)])
    assert (
        probability_at(1.0, nodes.counts(torch.cat([normal(300, 11, 5.5), gumbel(300, -14, 2)])), far_history()) > 0.9
    )
    assert probability_at(1.0, nodes.counts(near), far_history()) < 0.15


def test_recent_images_that_fit_the_history_change_only_the_share_of_known_ones():
    found, recent = far_history(), nodes.counts(torch.cat([normal(60, 11, 5.5), gumbel(540, -14, 2)]))
    ratio = correction.likelihood_ratio(*(side.numpy() for side in found))
    wanted = correction.probability_of(correction.share_of_known(recent.numpy(), ratio), ratio)
    np.testing.assert_array_equal(correction.probability_now(recent, found, mixture.typical_unknown()).numpy(), wanted)


def test_no_mixture_fits_margins_better_than_their_own_distribution():
    recent = nodes.counts(torch.cat([normal(40, 11, 5.5), gumbel(20, 1, 3)])).numpy()
    found = far_history()
    fit = correction.log_likelihood(recent, np.array([0.5]), *(side.numpy() for side in found))
    assert correction.best_log_likelihood(recent) > fit
    assert correction.best_log_likelihood(np.zeros(NODES)) == 0
