from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space, stream, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled import Contrast, LogOdds, Surprise
from unseen.detectors.pooled.evidence import (
    LabelStatistics,
    LogitMoments,
    evidence,
    expected_maximum,
    gap_shrinkage,
    typical_energy,
    typical_peak,
    unrelated_normal,
)
from unseen.labels import LabelSpace
from unseen.odds import TextLogits, text_logits


def logits(known: int = 4, negative: int = 9, *, rows: int = 5, scale: float = 1.0) -> TextLogits:
    generators = (torch.Generator().manual_seed(count) for count in (known, negative))
    counts = (known, negative)
    return TextLogits(
        *(
            scale * torch.randn(rows, count, generator=generator).double()
            for count, generator in zip(counts, generators, strict=True)
        )
    )


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_evidence_is_the_sum_of_its_three_terms(shrinkage):
    known, negative = text = logits(scale=3.0)
    log_odds = known.exp().sum(1).log() - negative.exp().sum(1).log()
    contrast, gap = known.amax(1) - known.mean(1), known.mean(1) - negative.mean(1)
    variance = (4 * known.var(1, correction=0) + 10 * negative.var(1, correction=0)) / 14
    found = evidence(text, LabelStatistics(4, 9, shrinkage, 4.0))
    torch.testing.assert_close(found.value, log_odds - shrinkage * gap + contrast / 2 + contrast**2 / variance / 8)
    torch.testing.assert_close(found.moments.negative_deviation, negative.std(1, correction=0))


def test_terms_of_a_subclass_replace_the_terms_of_evidence_and_baseline(labels):
    class OnlyContrast(PooledEvidence):
        terms = (Contrast(),)

    z, whole, part = stream(labels, 20), PooledEvidence(labels), OnlyContrast(labels)
    text = text_logits(labels, z, tau=part.tau)
    torch.testing.assert_close(part.evidence(text).value, (text.known.amax(1) - text.known.mean(1)) / 2)
    moments = whole.evidence(text).moments
    others = sum(term.baseline(moments, whole.label_statistics) for term in (LogOdds(), Surprise()))
    torch.testing.assert_close(part.baseline(moments) + others, whole.baseline(moments))
    assert part.settings == whole.settings


def test_moving_all_negatives_changes_nothing_at_full_shrinkage():
    known, negative = logits()
    moved = [evidence(TextLogits(known, negative + by), LabelStatistics(4, 9, 1.0, 4.0)).value for by in (0.0, 7.0)]
    torch.testing.assert_close(*moved)


def test_gap_shrinkage_is_small_for_one_cloud_of_names_and_large_for_two():
    words, apart = unit(300, 256, seed=0), unit(1, 256, seed=1)
    one = LabelSpace(names("n", 60), names("f", 240), words[:60], words[60:])
    two = LabelSpace(names("n", 60), names("f", 240), words[:60], normalize(words[60:] + 0.8 * apart, dim=1))
    assert gap_shrinkage(one) < 0.2  # what chance alone shows, give or take
    assert gap_shrinkage(two) > 0.9


def test_gap_shrinkage_of_a_single_name_is_zero():
    words = normalize(unit(21, 8, seed=3) + torch.eye(21, 8)[:, :1].double(), dim=1)
    assert gap_shrinkage(LabelSpace(("one",), names("f", 20), words[:1], words[1:])) == 0.0


def names(stem: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}{i}" for i in range(count))


def test_clarity_is_how_far_the_z_score_of_the_best_name_exceeds_that_of_a_right_name():
    known, negative = text = logits(scale=3.0)
    found = evidence(text, LabelStatistics(4, 9, 0.5, 2.0)).clarity
    torch.testing.assert_close(found, (known.amax(1) - negative.mean(1)) / negative.std(1, correction=0) / 2 - 1)


def test_beyond_the_fit_of_the_typical_peak_no_image_is_clear():
    labels = space()
    assert math.isfinite(typical_peak(labels))
    near = replace(labels, ood_anchors=normalize(labels.ood_anchors + 9 * labels.ood_anchors[:1], dim=1))
    assert near.separation > 12
    assert typical_peak(near) == math.inf


def test_text_of_another_model_than_that_of_the_images_tells_no_clarity():
    same, other = ({"text_fingerprint": text, "encoder_fingerprint": "a"} for text in "ab")
    assert math.isfinite(typical_peak(replace(space(), manifest=same)))
    assert typical_peak(replace(space(), manifest=other)) == math.inf


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


def running(detector: PooledEvidence, z: Tensor) -> Tensor:
    """The baseline of each sample from its definition: that of the mean moments of the first 256."""
    moments = detector.evidence(text_logits(detector.labels, z, tau=detector.tau)).moments
    means = [[part[: min(256, n)].mean() for part in moments] for n in range(1, len(z) + 1)]
    return torch.stack([detector.baseline(LogitMoments(*row)) for row in means])


def test_the_baseline_follows_the_mean_moments_of_256_samples_and_then_stays(labels):
    detector, z = PooledEvidence(labels), stream(labels, 600)
    output, state = detector.observe(detector.start(), z)
    torch.testing.assert_close(output.baseline, running(detector, z))
    assert output.baseline[255:].unique().numel() == 1
    assert torch.equal(detector.score(state, z[:50]).baseline, output.baseline[-1:].expand(50))


def test_the_baseline_of_a_score_is_that_of_the_sample_coming_next(labels):
    detector, z = PooledEvidence(labels), stream(labels, 61)
    _, state = detector.observe(detector.start(), z[:60])
    torch.testing.assert_close(detector.score(state, z[60:]).baseline, running(detector, z)[60:])


@pytest.mark.parametrize("first", [1, 255, 256, 257])
def test_the_baseline_does_not_depend_on_where_the_stream_is_divided(labels, first):
    detector, z = PooledEvidence(labels), stream(labels, 300)
    one, state = detector.observe(detector.start(), z[:first])
    two, _ = detector.observe(state, z[first:])
    torch.testing.assert_close(torch.cat([one.baseline, two.baseline]), running(detector, z))
