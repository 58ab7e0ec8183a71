from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import space, stream, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled import Contrast, LogOdds, Surprise
from unseen.detectors.pooled.evidence import LabelStatistics, evidence, gap_shrinkage, typical_peak
from unseen.labels import LabelSpace
from unseen.text import TextLogits, text_logits


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


@pytest.mark.parametrize(("known", "negative"), [(1, 1), (1, 5), (2, 1)])
def test_evidence_of_very_few_names_is_finite(known, negative):
    labels = space(known, negative, 6)
    detector = PooledEvidence(labels)
    output, state = detector.observe(detector.start(), stream(labels, 40))
    assert bool(output.score.isfinite().all())
    assert bool(detector.score(state, stream(labels, 5)).score.isfinite().all())


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
