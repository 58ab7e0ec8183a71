from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.streams import cone, unit
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.names import Looks, NameLogits, NameSums, TopNames, energy_gain, name_logits


def test_sums_are_those_of_a_loop_over_claims():
    z, name = unit(9, 8), torch.arange(18).reshape(9, 2) % 5
    share = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share[3, 1] = POOLED.least_share / 2  # too little to teach
    sums = NameSums.empty(unit(5, 8))
    sums.add_(name, share, z)
    images, total = [0.0] * 5, torch.zeros(5, 8, dtype=torch.float64)
    for row in range(9):
        for place in range(2):
            if (row, place) != (3, 1):
                images[name[row, place]] += float(share[row, place])
                total[name[row, place]] += share[row, place] * z[row]
    assert sums.images.tolist() == pytest.approx(images)
    torch.testing.assert_close(sums.total, total)


def literal_logits(
    z: Tensor, name: int, anchors: Tensor, sums: NameSums, side: Tensor, text_mean: Tensor
) -> list[float]:
    """What image space adds to the logit of one name, at its start and now, from the definition."""
    start = side + POOLED.text_share * (anchors[name] - text_mean)
    mean = (start + sums.total[name]) / (1 + sums.images[name])
    return [float(POOLED.name_scale * (z @ mu - mu @ mu / 2)) for mu in (start, mean)]


@pytest.mark.parametrize("images", [0, 50])
def test_name_logits_are_those_of_the_mean_of_each_name(images):
    labels, z = cone(), unit(3, 8)
    side, text_mean, anchors = unit(8, seed=5), labels.id_anchors.mean(0), labels.id_anchors
    sums = NameSums.empty(anchors)
    sums.add_(torch.arange(images)[:, None] % 3, torch.ones(images, 1).double(), unit(images, 8, seed=7))
    looks = Looks.of(anchors, sums, side - POOLED.text_share * text_mean)
    name = torch.tensor([[0, 2], [1, 3], [3, 0]])
    top = TopNames(name, 100 * (z @ anchors.T).gather(1, name))
    found = name_logits(z, top, sums, looks, tau=0.01)
    for row in range(3):
        for place in range(2):
            expected = literal_logits(z[row], int(name[row, place]), anchors, sums, side, text_mean)
            assert [float(found.start[row, place]), float(found.learned[row, place])] == pytest.approx(expected)
    assert torch.equal(found.images, sums.images[name])
    torch.testing.assert_close(found.learned[name == 3], found.start[name == 3])  # name 3 has claimed nothing


def test_names_that_all_gain_the_same_raise_the_energy_by_that_much():
    top = TopNames(torch.zeros(4, 3, dtype=torch.int64), torch.randn(4, 3).double())
    image = NameLogits(torch.zeros(4, 3), torch.full((4, 3), 2.5).double(), torch.zeros(4, 3))
    torch.testing.assert_close(energy_gain(top, image), torch.full((4,), 2.5).double())
