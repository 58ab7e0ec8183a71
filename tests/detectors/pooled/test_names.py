from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.streams import cone, unit
from unseen.detectors.pooled.names import (
    LEAST_SHARE,
    NAME_SCALE,
    TEXT_SHARE,
    NameLogits,
    NameSums,
    TopNames,
    energy_gain,
    name_logits,
    top_names,
)


@given(
    rows=st.integers(0, 5), count=st.integers(1, 700), top=st.integers(1, 20), seed=st.integers(0, 99), ties=st.booleans()
)
def test_top_names_equal_topk(rows, count, top, seed, ties):
    logits = torch.randn(rows, count, generator=torch.Generator().manual_seed(seed))
    logits = logits.round() if ties else logits
    found = top_names(logits, top=top)
    expected = logits.topk(min(top, count), dim=1)
    assert torch.equal(found.logit, expected.values)
    assert torch.equal(logits.gather(1, found.name), found.logit)
    assert ties or torch.equal(found.name, expected.indices)
    assert all(row.unique().numel() == row.numel() for row in found.name)


def test_sums_are_those_of_a_loop_over_claims():
    z, name = unit(9, 8), torch.arange(18).reshape(9, 2) % 5
    share = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share[3, 1] = LEAST_SHARE / 2  # too little to teach
    sums = NameSums.empty(unit(5, 8)).updated(name, share, z)
    images, total = [0.0] * 5, torch.zeros(5, 8, dtype=torch.float64)
    for row in range(9):
        for place in range(2):
            if (row, place) != (3, 1):
                images[name[row, place]] += float(share[row, place])
                total[name[row, place]] += share[row, place] * z[row]
    assert sums.images.tolist() == pytest.approx(images)
    torch.testing.assert_close(sums.total, total)


def test_sums_are_not_written_to():
    empty = NameSums.empty(unit(5, 8))
    empty.updated(torch.tensor([[1]]), torch.tensor([[1.0]]).double(), unit(1, 8))
    assert not empty.images.any()
    assert not empty.total.any()


def test_a_name_without_images_is_its_side_moved_towards_its_text():
    labels, z = cone(), unit(3, 8)
    side, text_mean = unit(8, seed=5), labels.id_anchors.mean(0)
    name = torch.tensor([[0, 2], [1, 3], [3, 0]])
    found = name_logits(z, name, labels.id_anchors, NameSums.empty(labels.id_anchors), side, text_mean)
    mean = side + TEXT_SHARE * (labels.id_anchors[2] - text_mean)
    assert float(found.start[0, 1]) == pytest.approx(float(NAME_SCALE * (z[0] @ mean - mean @ mean / 2)))
    assert torch.equal(found.start, found.learned)
    assert not found.images.any()


def test_a_name_with_many_images_is_their_mean():
    labels, z = cone(), unit(2, 8)
    image = unit(8, seed=7)
    sums = NameSums(torch.full((4,), 1e9).double(), 1e9 * image.expand(4, 8))
    found = name_logits(z, torch.tensor([[1], [2]]), labels.id_anchors, sums, unit(8, seed=5), labels.id_anchors.mean(0))
    torch.testing.assert_close(found.learned.squeeze(1), NAME_SCALE * (z @ image - 0.5))


def test_names_that_all_gain_the_same_raise_the_energy_by_that_much():
    top = TopNames(torch.zeros(4, 3, dtype=torch.int64), torch.randn(4, 3).double())
    image = NameLogits(torch.zeros(4, 3), torch.full((4, 3), 2.5).double(), torch.zeros(4, 3))
    torch.testing.assert_close(energy_gain(top, image), torch.full((4,), 2.5).double())
