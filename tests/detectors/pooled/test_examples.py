"""What examples do to the recommended detector."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import normalize

from helpers.streams import cone, space, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.constants import POOLED
from unseen.labels import Examples, with_examples
from unseen_bench.checks import check_detector

LABELS = space(8, 60, 24)
EXAMPLES = Examples(unit(16, 24, seed=4), torch.arange(16) % 8)


def test_a_detector_with_examples_passes_every_check() -> None:
    check_detector(PooledEvidence(with_examples(LABELS, EXAMPLES)))


def test_sums_of_names_start_with_their_examples() -> None:
    sums = PooledEvidence(replace(LABELS, examples=EXAMPLES)).start().sums.known
    assert sums.images.tolist() == [2 * POOLED.example_weight] * 8
    expected = POOLED.example_weight * (EXAMPLES.z[0] + EXAMPLES.z[8]).double()
    torch.testing.assert_close(sums.total[0], expected)


def test_images_that_look_like_examples_get_their_names() -> None:
    labels = cone(6, 40, 32, dtype=torch.float32)
    looks = normalize(labels.id_anchors + unit(6, 32, seed=11).float(), dim=1)
    label = torch.arange(6).repeat(8)
    noise = 0.02 * torch.randn(48, 32, generator=torch.Generator().manual_seed(0))
    images = normalize(looks[label] + noise, dim=1)
    frozen = PooledEvidence(labels)
    taught = PooledEvidence(with_examples(labels, Examples(images[:24], label[:24])))
    named = [one.score(one.start(), images[24:]).label for one in (frozen, taught)]
    before, after = (float((names == label[24:]).double().mean()) for names in named)
    assert after > before + 0.1
