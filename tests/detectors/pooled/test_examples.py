"""What examples do to the recommended detector."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import cone, space, unit
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


def test_states_that_are_merged_count_the_examples_once() -> None:
    detector = PooledEvidence(replace(LABELS, examples=EXAMPLES))
    z = example_stream(detector)
    start = detector.start()
    ends = [detector.observe(start, part)[1] for part in z.split(30)]
    merged = detector.merge(start, ends).sums.known.images
    learned = [end.updated(detector.labels).sums.known.images - start.sums.known.images for end in ends]
    torch.testing.assert_close(merged, start.sums.known.images + sum(learned))


def test_the_first_image_is_no_more_known_than_the_same_image_later() -> None:
    labels = cone(6, 40, 32, dtype=torch.float32)
    centre = 3 * unit(1, 32, seed=5).float()  # images lie apart from text
    looks = normalize(labels.id_anchors + centre + unit(6, 32, seed=11).float(), dim=1)
    unrelated = normalize(centre + unit(200, 32, seed=6).float(), dim=1)
    label = torch.arange(6).repeat(4)
    detector = PooledEvidence(replace(labels, examples=Examples(looks[label], label)))
    before = detector.score(detector.start(), unrelated).margin.mean()
    after = detector.score(detector.observe(detector.start(), unrelated)[1], unrelated).margin.mean()
    assert abs(float(before - after)) < 5
