"""What examples show of names in the variation of a stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close
from unseen.detectors.pooled.distinction import Distinction, coverage, looks

from helpers.streams import space, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.names import NameSums
from unseen.detectors.pooled.sides import SideSums
from unseen.labels import Examples, LabelSpace

LABELS = space(4, 30, 12)
EXAMPLES = Examples(unit(9, 12, seed=4).double(), torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3]))
TAUGHT = replace(LABELS, examples=EXAMPLES)


ORIGIN = unit(1, 12, seed=6)[0] / 2
CLAIMED = NameSums(torch.tensor([3.0, 0.0, 8.5, 40.0]).double(), 5 * unit(4, 12, seed=7).double())


def distinction(sides: SideSums, labels: LabelSpace) -> Distinction:
    return Distinction.of(sides, CLAIMED, ORIGIN, labels)


def stream_sides(count: int = 400) -> SideSums:
    generator = torch.Generator().manual_seed(1)
    scale = torch.linspace(0.2, 2, 12, dtype=torch.float64)
    z = normalize(scale * torch.randn(count, 12, generator=generator, dtype=torch.float64) + 1, dim=1)
    known = torch.rand(count, generator=generator, dtype=torch.float64)
    sums = SideSums.empty(12)
    sums.add_(torch.stack([1 - known, known]), z, known)
    return sums


def added_by_hand(z: Tensor, name: int, sides: SideSums, labels: LabelSpace, kept: Examples) -> tuple[float, float]:
    """Specific and plain likeness of one image to a name, sample by sample and by an inverse."""
    shares = [sides.gram[side] / sides.weight[side] / 2 for side in (0, 1)]
    centre = (sides.image / sides.weight.unsqueeze(1)).mean(0)
    variation = shares[0] + shares[1] - torch.outer(centre, centre)
    variation = (1 - POOLED.shrinkage) * variation / variation.diagonal().mean() + POOLED.shrinkage * torch.eye(
        12
    ).double()
    start = EXAMPLES.z.double().mean(0) + POOLED.text_share * (labels.id_anchors - labels.text_mean).double()
    own = kept.z[kept.label == name].double()
    mu = (POOLED.text_samples * start[name] + own.sum(0)) / (POOLED.text_samples + len(own))
    every = looks(TAUGHT, EXAMPLES).double().mean(0)
    q = mu - centre
    inverse = torch.linalg.inv(variation)
    return float((z - centre) @ inverse @ q - q @ inverse @ q / 2), float(z @ (mu - every))


def test_the_score_gains_specific_and_loses_plain_likeness_less_the_mean_of_examples_left_out() -> None:
    sides, z = stream_sides(), unit(5, 12, seed=9).double()
    found = distinction(sides, TAUGHT)
    effective = 4 / (1 / sides.weight).sum()
    weight = float(effective / (effective + POOLED.half_stream)) * 9 / (9 + POOLED.half_examples)
    level = []
    for one in range(9):
        others = torch.arange(9) != one
        image, label = EXAMPLES.z[one].double(), int(EXAMPLES.label[one])
        specific, plain = added_by_hand(image, label, sides, TAUGHT, EXAMPLES[others])
        level.append(POOLED.specific * specific - POOLED.plain * plain)
    for image in z:
        for name in range(4):
            specific, plain = added_by_hand(image, name, sides, TAUGHT, EXAMPLES)
            added = found.score.at(image.float().unsqueeze(0).to(found.score.rows), torch.tensor([[name]]))
            expected = weight * (POOLED.specific * specific - POOLED.plain * plain - sum(level) / 9)
            assert_close(float(added), expected, rtol=1e-3, atol=1e-3)


def test_a_discriminant_takes_the_place_of_looks_where_an_image_is_named() -> None:
    found = distinction(stream_sides(), TAUGHT).naming
    residuals = [EXAMPLES.z[i] - EXAMPLES.z[EXAMPLES.label == EXAMPLES.label[i]].mean(0) for i in range(9)]
    variation = sum(torch.outer(one, one) for one in residuals) / (9 - 4)
    shrunk = 0.3 * variation + 0.7 * variation.diagonal().mean() * torch.eye(12)
    for name in range(4):
        start = ORIGIN + POOLED.text_share * LABELS.id_anchors[name]
        total, images = CLAIMED.total[name], CLAIMED.images[name]
        look = (total + POOLED.naming_start * start) / (images + POOLED.naming_start)
        mean = (total + start) / (images + 1)
        for z in unit(5, 12, seed=9).double():
            discriminant = torch.linalg.solve(shrunk.double(), look) @ (z - look / 2)
            plain = 40 * images / (images + 32) * ((z - mean / 2) @ mean - (z - start / 2) @ start)
            got = found.at(z.unsqueeze(0), torch.tensor([[name]]))
            assert_close(float(got), float(2 / 3 * (POOLED.naming * discriminant - plain)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("few", [EXAMPLES[EXAMPLES.label < 3], EXAMPLES[EXAMPLES.place == 0]])
def test_names_are_not_named_by_examples_where_one_has_fewer_than_two(few: Examples) -> None:
    found = distinction(stream_sides(), replace(LABELS, examples=few))
    assert not bool(found.naming.rows.any())
    assert bool(found.score.rows.any())


def test_examples_of_few_names_count_little_for_all_of_them() -> None:
    assert coverage(EXAMPLES, 4) == 1
    assert coverage(EXAMPLES, 8) == 4 / (4 + 4 / 4)
    assert coverage(EXAMPLES, 400) < 0.05


def test_a_state_without_examples_has_no_rows_and_one_with_them_starts_at_zero() -> None:
    assert len(PooledEvidence(LABELS).start().fitted.distinction.score.rows) == 0
    assert len(distinction(stream_sides(), LABELS).score.rows) == 0
    assert not bool(PooledEvidence(TAUGHT).start().fitted.distinction.score.rows.any())
