"""What examples do to the recommended detector."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import cone, space, unit
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled import PooledState
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.distinction import Distinction
from unseen.detectors.pooled.evidence import Contrast, LabelStatistics, measured_unit
from unseen.detectors.pooled.state import SampleBlock, SampleRows
from unseen.labels import Examples, with_examples
from unseen.odds import text_logits
from unseen_bench.checks import check_detector, example_stream

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


def test_the_first_image_is_no_more_known_than_the_same_image_later() -> None:
    class WithoutDistinction(PooledEvidence):
        """What variation says of an unrelated image no stream has shown at first."""

        def _judge(self, state: PooledState, block: SampleBlock) -> tuple[DetectorOutput, SampleRows]:
            fitted = state.fitted._replace(distinction=Distinction.none(self.labels))
            return super()._judge(state._replace(fitted=fitted), block)

    labels = cone(6, 40, 32, dtype=torch.float32)
    centre = 3 * unit(1, 32, seed=5).float()  # images lie apart from text
    looks = normalize(labels.id_anchors + centre + unit(6, 32, seed=11).float(), dim=1)
    unrelated = normalize(centre + unit(200, 32, seed=6).float(), dim=1)
    label = torch.arange(6).repeat(4)
    detector = WithoutDistinction(replace(labels, examples=Examples(looks[label], label)))
    before = detector.score(detector.start(), unrelated).margin.mean()
    after = detector.score(detector.observe(detector.start(), unrelated)[1], unrelated).margin.mean()
    assert abs(float(before - after)) < 5


def test_clarity_is_measured_against_spared_or_all_examples_and_against_the_text_where_they_are_too_few() -> None:
    whole, few = (PooledEvidence(replace(LABELS, examples=one)) for one in (EXAMPLES, EXAMPLES[torch.arange(16) < 7]))
    known, negative = (EXAMPLES.z.double() @ rows.double().T for rows in (LABELS.id_anchors, LABELS.ood_anchors))
    peak = (known.amax(1) - negative.mean(1)) / negative.std(1, correction=0)
    assert whole.label_statistics.typical_peak == pytest.approx(float(peak.mean()), rel=1e-5)
    clarity = [one.score(one.start(), EXAMPLES.z).clarity for one in (whole, few)]
    assert float(clarity[0].mean()) == pytest.approx(0, abs=1e-4)
    assert few.label_statistics == PooledEvidence(LABELS).label_statistics
    spared = PooledEvidence(replace(LABELS, examples=few.labels.examples, spared=EXAMPLES))
    assert spared.label_statistics == few.label_statistics  # too few teach
    other = replace(EXAMPLES, z=EXAMPLES.z.flip(0)[:9], label=EXAMPLES.label[:9])
    sparing = PooledEvidence(replace(LABELS, examples=EXAMPLES, spared=other)).label_statistics
    assert sparing.typical_peak == pytest.approx(float(peak.flip(0)[:9].mean()), rel=1e-5)


def test_margins_are_in_units_of_the_deviation_that_examples_show() -> None:
    class InNats(PooledEvidence):
        @property
        def label_statistics(self) -> LabelStatistics:  # type: ignore[override]
            return super().label_statistics._replace(unit=1.0)

    labels = replace(LABELS, examples=EXAMPLES)
    scaled, plain = PooledEvidence(labels), InNats(labels)
    own = plain.evidence(text_logits(labels, EXAMPLES.z, tau=0.01)).value
    deviation = math.sqrt((15 * float(own.var()) + 8 * 3.15**2) / (15 + 8))  # the start is worth eight examples
    unit = scaled.label_statistics.unit
    assert unit == pytest.approx(1.2 * deviation / 3.15, rel=1e-5)
    z = example_stream(scaled)[:1]
    found, expected = (one.observe(one.start(), z)[0] for one in (scaled, plain))
    torch.testing.assert_close(found.margin * unit, expected.margin)
    assert found.label.equal(expected.label)


def test_the_unit_of_margins_by_hand() -> None:
    assert measured_unit(torch.zeros(1)) == pytest.approx(1.2)  # one example shows no deviation
    assert measured_unit(torch.zeros(9)) == pytest.approx(1.2 * math.sqrt(0.5))
    assert measured_unit(3.15 * torch.tensor([-1.0, 0.0, 1.0])) == pytest.approx(1.2)


def test_contrast_counts_less_the_more_examples_each_name_has() -> None:
    contrast = [
        next(term for term in PooledEvidence(one).used_terms if isinstance(term, Contrast))
        for one in (LABELS, replace(LABELS, examples=EXAMPLES))
    ]
    assert contrast[1].weight == pytest.approx(contrast[0].weight / 3)  # two examples of each name
