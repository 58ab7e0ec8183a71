from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import space, stream, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.detector import confident_votes
from unseen.detectors.state import flatten
from unseen.errors import LabelError, SettingError
from unseen.text import TextLogits, text_logits


@pytest.mark.parametrize("order", ["observe", "score"])
def test_without_pool_weight_the_score_is_the_frozen_evidence(labels, order):
    detector, z = PooledEvidence(labels, pool_weight=0.0), stream(labels, 100)
    expected = detector.evidence(text_logits(labels, z, tau=detector.tau)).value
    reading, state = detector.observe(detector.start(), z)
    got = reading if order == "observe" else detector.score(state, z)
    torch.testing.assert_close(got.score, expected)


def test_the_first_sample_of_a_stream_is_scored_by_its_own_evidence(labels):
    detector, z = PooledEvidence(labels), stream(labels, 30)
    own = detector.evidence(text_logits(labels, z, tau=detector.tau)).value
    torch.testing.assert_close(detector.score(detector.start(), z).score, own)
    reading, _ = detector.observe(detector.start(), z[:1])
    torch.testing.assert_close(reading.score, own[:1])


def test_a_vote_needs_more_than_half_of_the_posterior():
    known = torch.tensor([[0.0, 3.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    ballot = confident_votes(TextLogits(known, known))
    assert (ballot > 0).tolist() == [[False, True, False], [False] * 3, [False] * 3]
    assert float(ballot[0, 1]) == pytest.approx(float(known[0].softmax(0)[1]))


def test_a_popular_name_must_stand_out_more():
    labels = space(3, 20, 16)
    popular = normalize(labels.id_anchors[:1] + 0.01 * unit(400, 16, seed=5), dim=1)
    detector = PooledEvidence(labels)
    _, state = detector.observe(detector.start(), popular)
    assert float(state.votes[0]) > 390
    assert state.votes[1:].abs().max() < 1e-6
    text = text_logits(labels, z := stream(labels, 50), tau=detector.tau)
    expected = (text.known - torch.log1p(state.votes / 5) / 4).argmax(1)
    assert torch.equal(detector.score(state, z).label, expected)
    plain = PooledEvidence(labels, popularity_discount=0.0)
    assert torch.equal(plain.score(state, z).label, text.known.argmax(1))


def test_splitting_a_long_stream_into_calls_changes_nothing():
    labels = space(4, 20, 8)
    detector, z = PooledEvidence(labels), stream(labels, 12_000)
    whole, end = detector.observe(detector.start(), z)
    state, parts = detector.start(), []
    for piece in z.split([1, 6, 500, 513, 2000, 8980]):
        reading, state = detector.observe(state, piece)
        parts.append(reading.score)
    torch.testing.assert_close(torch.cat(parts), whole.score, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(state.regression.cov, end.regression.cov, rtol=1e-6, atol=1e-10)


def test_the_state_has_d_squared_numbers_and_one_for_each_name():
    labels = space(7, 30, 12)
    detector = PooledEvidence(labels)
    _, state = detector.observe(detector.start(), stream(labels, 50))
    assert sum(part.numel() for part in flatten(state).values()) == 13 * 13 + 13 + 7 + 15


def test_pooling_ranks_better_where_unknown_images_resemble_each_other():
    # unknown images share a direction that the noisy text hardly reads: their neighbours show it
    labels = space(20, 60, 48)
    generator = torch.Generator().manual_seed(0)
    is_id = torch.rand(3000, generator=generator) < 0.5
    known = labels.id_anchors[torch.randint(20, (3000,), generator=generator)]
    centre = torch.where(is_id[:, None], 0.6 * known, 0.6 * unit(1, 48, seed=9))
    z = normalize(centre + 0.14 * torch.randn(3000, 48, generator=generator, dtype=torch.float64), dim=1)
    rank = {}
    for share in (0.0, 0.5):
        detector = PooledEvidence(labels, pool_weight=share)
        score = detector.observe(detector.start(), z)[0].score[1000:]
        wins = score[is_id[1000:]][:, None] > score[~is_id[1000:]][None]
        rank[share] = float(wins.double().mean())
    assert rank[0.5] > rank[0.0] + 0.02


@pytest.mark.parametrize(
    "options",
    [
        {"pool_weight": 1.5},
        {"pool_weight": -0.1},
        {"popularity_discount": 2.0},
        {"tau": 0.0},
        {"leverage_limit": -1.0},
        {"half_explained": 0.0},
    ],
)
def test_settings_out_of_range_are_refused(labels, options):
    with pytest.raises(SettingError, match=f"expected {next(iter(options))}"):
        PooledEvidence(labels, **options)


def test_it_needs_negatives():
    with pytest.raises(LabelError, match="expected a label space with negatives for 'pooled'"):
        PooledEvidence(space(3, 0))
