"""What examples show of names in the variation of a stream."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

from helpers.streams import space, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.distinction import (
    HALF_EXAMPLES,
    HALF_STREAM,
    NAMING,
    PLAIN,
    SHRINKAGE,
    SPECIFIC,
    TEXT_SAMPLES,
    Distinction,
    looks,
)
from unseen.detectors.pooled.names import TEXT_SHARE
from unseen.detectors.pooled.sides import SideSums
from unseen.labels import Examples, LabelSpace

LABELS = space(4, 30, 12)
EXAMPLES = Examples(unit(9, 12, seed=4).double(), torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3]))
TAUGHT = replace(LABELS, examples=EXAMPLES)


def stream_sides(count: int = 400) -> SideSums:
    generator = torch.Generator().manual_seed(1)
    scale = torch.linspace(0.2, 2, 12, dtype=torch.float64)
    z = normalize(scale * torch.randn(count, 12, generator=generator, dtype=torch.float64) + 1, dim=1)
    known = torch.rand(count, generator=generator, dtype=torch.float64)
    return SideSums.empty(12).updated(torch.stack([1 - known, known]), z, known)


def added_by_hand(z: Tensor, name: int, sides: SideSums, labels: LabelSpace, kept: Examples) -> tuple[float, float]:
    """Return specific and plain likeness of one image to a name, sample by sample and by an inverse."""
    shares = [sides.gram[side] / sides.weight[side] / 2 for side in (0, 1)]
    centre = (sides.image / sides.weight.unsqueeze(1)).mean(0)
    variation = shares[0] + shares[1] - torch.outer(centre, centre)
    variation = (1 - SHRINKAGE) * variation / variation.diagonal().mean() + SHRINKAGE * torch.eye(12).double()
    start = EXAMPLES.z.double().mean(0) + TEXT_SHARE * (labels.id_anchors - labels.text_mean).double()
    own = kept.z[kept.label == name].double()
    mu = (TEXT_SAMPLES * start[name] + own.sum(0)) / (TEXT_SAMPLES + len(own))
    every = looks(TAUGHT, EXAMPLES).double().mean(0)
    q = mu - centre
    inverse = torch.linalg.inv(variation)
    return float((z - centre) @ inverse @ q - q @ inverse @ q / 2), float(z @ (mu - every))


def test_the_score_gains_specific_and_loses_plain_likeness_less_the_mean_of_examples_left_out() -> None:
    sides, z = stream_sides(), unit(5, 12, seed=9).double()
    found = Distinction.of(sides, TAUGHT)
    effective = 4 / (1 / sides.weight).sum()
    weight = float(effective / (effective + HALF_STREAM)) * 9 / (9 + HALF_EXAMPLES)
    level = []
    for one in range(9):
        others = torch.arange(9) != one
        image, label = EXAMPLES.z[one].double(), int(EXAMPLES.label[one])
        specific, plain = added_by_hand(image, label, sides, TAUGHT, EXAMPLES[others])
        level.append(SPECIFIC * specific - PLAIN * plain)
    for image in z:
        for name in range(4):
            specific, plain = added_by_hand(image, name, sides, TAUGHT, EXAMPLES)
            added = found.score.at(image.float().unsqueeze(0).to(found.score.rows), torch.tensor([[name]]))
            expected = weight * (SPECIFIC * specific - PLAIN * plain - sum(level) / 9)
            assert_close(float(added), expected, rtol=1e-3, atol=1e-3)
            naming = found.naming.at(image.unsqueeze(0).to(found.naming.rows), torch.tensor([[name]]))
            assert_close(float(naming), weight * NAMING * 2 / (2 + TEXT_SAMPLES) * specific, rtol=1e-3, atol=1e-3)


def test_names_are_not_named_by_examples_where_one_has_none() -> None:
    labels = replace(LABELS, examples=EXAMPLES[EXAMPLES.label < 3])
    found = Distinction.of(stream_sides(), labels)
    assert not bool(found.naming.rows.any())
    assert bool(found.score.rows.any())


def test_a_state_without_examples_has_no_rows_and_one_with_them_starts_at_zero() -> None:
    assert len(PooledEvidence(LABELS).start().fitted.distinction.score.rows) == 0
    assert len(Distinction.of(stream_sides(), LABELS).score.rows) == 0
    assert not bool(PooledEvidence(TAUGHT).start().fitted.distinction.score.rows.any())
