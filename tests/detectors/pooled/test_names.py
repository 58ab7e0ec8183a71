from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

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
    name_means,
    top_names,
)


@given(
    rows=st.integers(0, 5),
    count=st.integers(1, 700),
    top=st.integers(1, 20),
    seed=st.integers(0, 99),
    ties=st.booleans(),
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


def literal_logits(
    z: Tensor, name: int, anchors: Tensor, sums: NameSums, side: Tensor, text_mean: Tensor
) -> list[float]:
    """What image space adds to the logit of one name, at its start and now, from the definition."""
    start = side + TEXT_SHARE * (anchors[name] - text_mean)
    mean = (start + sums.total[name]) / (1 + sums.images[name])
    return [float(NAME_SCALE * (z @ mu - mu @ mu / 2)) for mu in (start, mean)]


@pytest.mark.parametrize("images", [0, 50])
def test_name_logits_are_those_of_the_mean_of_each_name(images):
    labels, z = cone(), unit(3, 8)
    side, text_mean, anchors = unit(8, seed=5), labels.id_anchors.mean(0), labels.id_anchors
    sums = NameSums.empty(anchors)
    sums = sums.updated(torch.arange(images)[:, None] % 3, torch.ones(images, 1).double(), unit(images, 8, seed=7))
    origin = side - TEXT_SHARE * text_mean
    name = torch.tensor([[0, 2], [1, 3], [3, 0]])
    cosine = (z @ anchors.T).gather(1, name)
    found = name_logits(z, cosine, name, anchors, sums, origin)
    for row in range(3):
        for place in range(2):
            expected = literal_logits(z[row], int(name[row, place]), anchors, sums, side, text_mean)
            assert [float(found.start[row, place]), float(found.learned[row, place])] == pytest.approx(expected)
    assert torch.equal(found.images, sums.images[name])
    torch.testing.assert_close(found.learned[name == 3], found.start[name == 3])  # name 3 has claimed nothing


@pytest.mark.parametrize("count", [1, 3, 40])
def test_name_logits_do_not_depend_on_how_many_names_there_are_or_images_come(count):
    anchors, z = unit(600, 8, seed=1), unit(count, 8)
    sums = NameSums(torch.arange(600.0).double() % 3, unit(600, 8, seed=2))
    top = top_names(100 * z @ anchors.T)
    found = name_logits(z, top.logit / 100, top.name, anchors, sums, unit(8, seed=5))
    each = name_means(anchors, sums, unit(8, seed=5))
    expected = NAME_SCALE * (z @ each.mean.T - each.length / 2)
    torch.testing.assert_close(found.learned, expected.gather(1, top.name))
    assert torch.equal(found.images, sums.images[top.name])


def test_means_of_float32_names_are_float32_and_near_those_of_float64():
    shapes = []
    for kind in (torch.float32, torch.float64):
        anchors = cone(dtype=torch.float64).id_anchors.to(kind)
        sums = NameSums(torch.full((4,), 1e6, dtype=kind), 1e6 * unit(4, 8, seed=7).to(kind))
        shapes.append(name_means(anchors, sums, unit(8, seed=5).to(kind)))
    assert {part.dtype for part in shapes[0]} == {torch.float32}
    for one, other in zip(*shapes, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)


def test_names_that_all_gain_the_same_raise_the_energy_by_that_much():
    top = TopNames(torch.zeros(4, 3, dtype=torch.int64), torch.randn(4, 3).double())
    image = NameLogits(torch.zeros(4, 3), torch.full((4, 3), 2.5).double(), torch.zeros(4, 3))
    torch.testing.assert_close(energy_gain(top, image), torch.full((4,), 2.5).double())
