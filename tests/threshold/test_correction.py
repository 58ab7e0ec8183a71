from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.margins import gumbel, normal
from unseen.threshold import correction, mixture, nodes
from unseen.threshold.correction import EXPECTED_IMAGES, OUTLIER, ROUNDS, SHARE_IMAGES, SHARE_ROUNDS
from unseen.threshold.nodes import NODES, Array


def expected_sides(known_mean: float = 9.5, unknown_mean: float = -6.0) -> tuple[torch.Tensor, torch.Tensor]:
    grid, cells = mixture.hypotheses(), mixture.cells()
    pick = (grid.known_mean == known_mean) & (grid.shape == mixture.NORMAL)
    pick &= (grid.unknown_mean == unknown_mean) & (grid.unknown_deviation == 2.5)
    return tuple(side[:, pick][:, 1] for side in cells)  # type: ignore[return-value]


def plain_ratio(known: Array, unknown: Array) -> Array:
    """Return the ratio by loops: from the peak outwards it may only fall to the left and rise to the right."""
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
        known = known / known.sum()
        ratio = plain_ratio(known.copy(), other / other.sum())
    return known, ratio


@pytest.mark.parametrize("count", [0, 7, 900])
def test_correction_equals_plain_expectation_maximisation(count):
    at_nodes = nodes.counts(torch.cat([normal(count, 6, 7), gumbel(2 * count, -2, 3)]))
    known, unknown = expected_sides()
    found = correction.corrected(known, unknown, at_nodes)
    wanted = plain_correction(known.numpy(), unknown.numpy(), at_nodes.numpy())
    np.testing.assert_allclose(found.known.numpy(), wanted[0], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(found.ratio.numpy(), wanted[1], rtol=1e-9)


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
