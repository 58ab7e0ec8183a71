"""What examples do to the recommended detector."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import space, unit
from unseen.checks import ALL_CHECKS, Check, example_stream
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.state import EXAMPLE_WEIGHT
from unseen.labels import Examples, with_examples

LABELS = space(8, 60, 24)
EXAMPLES = Examples(unit(16, 24, seed=4), torch.arange(16) % 8)


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_a_detector_with_examples_passes_every_check(check: Check) -> None:
    detector = PooledEvidence(with_examples(LABELS, EXAMPLES))
    check(detector, example_stream(detector))


def test_sums_of_names_start_with_their_examples() -> None:
    sums = PooledEvidence(replace(LABELS, examples=EXAMPLES)).start().sums.known
    assert sums.images.tolist() == [2 * EXAMPLE_WEIGHT] * 8
    expected = EXAMPLE_WEIGHT * (EXAMPLES.z[0] + EXAMPLES.z[8]).double()
    torch.testing.assert_close(sums.total[0], expected)


def test_an_image_like_an_example_gets_its_name_though_its_text_lies_elsewhere() -> None:
    labels = space(6, 40, 64, dtype=torch.float32)
    look = normalize(0.5 * labels.id_anchors[0] + labels.id_anchors[1] + 2 * unit(1, 64, seed=11)[0].float(), dim=0)
    noise = 0.05 * torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    images = normalize(look + noise, dim=1)
    others = torch.cat([labels.id_anchors[2:]] * 4)
    z, label = torch.cat([images[:4], others]), torch.cat([torch.zeros(4), torch.arange(2, 6).repeat(4)]).long()
    frozen = PooledEvidence(labels)
    taught = PooledEvidence(with_examples(labels, Examples(z, label)))
    assert frozen.score(frozen.start(), images[4:]).label.tolist() == [1, 1]
    assert taught.score(taught.start(), images[4:]).label.tolist() == [0, 0]
