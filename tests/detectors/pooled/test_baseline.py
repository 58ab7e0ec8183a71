from __future__ import annotations

import math

import pytest
import torch

from helpers.streams import space, stream
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.baseline import expected_maximum, typical_energy, unrelated_normal
from unseen.detectors.pooled.evidence import LogitMoments
from unseen.text import TextLogits, text_logits


@pytest.mark.parametrize("count", [4, 10, 200])
def test_the_normal_of_unrelated_names_is_found_whether_or_not_one_name_is_right(count):
    known = 3 + 2 * torch.randn(20_000, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for hit, off in ((0.0, 0.05), (15.0, 0.35)):
        known[:, 0] += hit
        mean, variance = known.mean(1), known.var(1, correction=0)
        mean, deviation = unrelated_normal(mean, variance, known.amax(1), count)
        assert float(deviation.square().mean().sqrt()) == pytest.approx(2, rel=off)
        assert float(mean.mean()) == pytest.approx(3, abs=2 * off + 0.1)


def test_few_names_keep_their_plain_moments():
    mean, deviation = unrelated_normal(torch.tensor([1.0]), torch.tensor([4.0]), torch.tensor([3.0]), 2)
    assert (float(mean), float(deviation)) == (1, 2)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (10, 1.538753), (100, 2.507594)],
)
def test_expected_maximum_of_normals(count, expected):
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-6)


def test_expected_maximum_of_very_many_names():
    drawn = torch.randn(2000, 1000, generator=torch.Generator().manual_seed(0)).amax(1).mean()
    assert expected_maximum(1000) == pytest.approx(float(drawn), abs=0.03)
    assert expected_maximum(1_000_000) == pytest.approx(4.863, abs=0.01)


def test_typical_energy_is_the_median_on_both_sides_of_the_freezing():
    generator = torch.Generator().manual_seed(0)
    for count, deviation in ((5000, 1.0), (5000, 3.0), (200, 3.0)):
        drawn = deviation * torch.randn(500, count, generator=generator, dtype=torch.float64)
        typical = float(drawn.logsumexp(1).median())
        assert float(typical_energy(count, torch.tensor(deviation))) == pytest.approx(typical, abs=0.7)


@pytest.mark.parametrize(
    ("known", "negative", "known_deviation", "negative_deviation", "gap"),
    [(200, 742, 1.0, 1.0, 0.0), (200, 742, 2.5, 2.5, 0.5), (1000, 10_499, 3.0, 2.0, -3.5), (6, 2000, 2.0, 2.2, -5.0)],
)
def test_the_baseline_is_the_typical_evidence_of_logits_that_are_two_normals(
    known, negative, known_deviation, negative_deviation, gap
):
    generator = torch.Generator().manual_seed(0)
    near = gap + known_deviation * torch.randn(400, known, generator=generator, dtype=torch.float64)
    far = negative_deviation * torch.randn(400, negative, generator=generator, dtype=torch.float64)
    detector = PooledEvidence(space(known, negative, 2))
    found = detector.evidence(TextLogits(near, far))
    expected = detector.baseline(LogitMoments(*(part.mean() for part in found.moments)))
    # second order: the log of a sum of few draws is lower than that of its mean, the square of a maximum higher
    assert float(found.value.mean()) == pytest.approx(float(expected), abs=1.0)


def test_the_baseline_follows_the_mean_moments_of_the_stream_so_far(labels):
    detector, z = PooledEvidence(labels, pool_weight=0.0), stream(labels, 60)
    moments = detector.evidence(text_logits(labels, z, tau=detector.tau)).moments
    reading, state = detector.observe(detector.start(), z)
    running = LogitMoments(*(part.cumsum(0) / torch.arange(1, 61) for part in moments))
    torch.testing.assert_close(reading.baseline, detector.baseline(running))
    again = LogitMoments(*((part.sum() + part) / 61 for part in moments))
    torch.testing.assert_close(detector.score(state, z).baseline, detector.baseline(again))


def test_the_level_of_the_stream_does_not_move_margins():
    # the pool is never trusted: a score is half the level, and a margin half that of the sample by itself
    labels = space(6, 30, 24)
    detector, z = PooledEvidence(labels, half_explained=1e6, leverage_limit=1e6), stream(labels, 200)
    reading, state = detector.observe(detector.start(), z)
    own = PooledEvidence(labels, pool_weight=0.0).observe(detector.start(), z)[0]
    seen = torch.arange(200)
    kept = 1 - 0.5 * seen / (seen + detector.prior_samples)
    torch.testing.assert_close(reading.margin, kept * own.margin)
    later = detector.score(state, z[:5])
    plain = PooledEvidence(labels, pool_weight=0.0).score(state, z[:5])
    torch.testing.assert_close(later.margin, (1 - 0.5 * 200 / (200 + detector.prior_samples)) * plain.margin)
