from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space, stream, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled import detector as module
from unseen.detectors.pooled.detector import (
    Record,
    Say,
    Spread,
    energy_of_draws,
    evidence,
    expected_maximum,
    one_by_one,
    powers,
    two_sided,
    votes,
    with_level,
    without_the_best,
)
from unseen.errors import LabelError, SettingError
from unseen.labels import LabelSpace
from unseen.text import TextLogits, text_logits


def kalman(x: Tensor, f: Tensor, weight: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return prediction and leverage before each sample, then the state after the last: the textbook filter."""
    predicted, leverage = [], []
    for row, value in zip(x, f, strict=True):
        gain = cov @ row
        predicted.append(row @ weight)
        leverage.append(row @ gain)
        weight = weight + gain * (value - predicted[-1]) / (1 + leverage[-1])
        cov = cov - torch.outer(gain, gain) / (1 + leverage[-1])
    return torch.stack(predicted), torch.stack(leverage), weight, cov


@given(
    count=st.integers(1, 40),
    dim=st.integers(1, 12),
    seed=st.integers(0, 99),
    spread=st.floats(0.01, 1e4),
    panel=st.sampled_from([1, 7, 128]),
)
def test_a_block_is_the_filter_sample_by_sample(count, dim, seed, spread, panel):
    generator = torch.Generator().manual_seed(seed)
    x = with_level(unit(count, dim, seed=seed))
    f = 10 * torch.randn(count, generator=generator, dtype=torch.float64)
    weight = torch.randn(dim + 1, generator=generator, dtype=torch.float64)
    cov = torch.eye(dim + 1, dtype=torch.float64) * spread
    with mock.patch.object(module, "PANEL", panel):
        lesson, got_weight, got_cov = one_by_one(x, f, weight, cov)
    predicted, leverage, end, left = kalman(x, f, weight, cov)
    close = {"rtol": 1e-6, "atol": 1e-7 * (1 + spread)}
    torch.testing.assert_close(lesson.predicted, predicted, **close)
    torch.testing.assert_close(lesson.leverage, leverage, **close)
    torch.testing.assert_close(got_weight, end, **close)
    torch.testing.assert_close(got_cov, left, **close)
    torch.testing.assert_close(cov - lesson.white.T @ lesson.white, left, **close)


def test_the_pool_after_a_stream_is_ridge_regression(labels):
    detector, z = PooledEvidence(labels), stream(labels, 300)
    _, state = detector.observe(detector.start(), z)
    x, f = with_level(z), evidence(text_logits(labels, z, tau=detector.tau), detector.lean).known
    precision = torch.full((labels.dim + 1,), detector.ridge, dtype=torch.float64)
    precision[-1] = 1e-4
    normal = x.T @ x + precision.diag()
    torch.testing.assert_close(state.weight, torch.linalg.solve(normal, x.T @ f), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.cov, torch.linalg.inv(normal), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("lean", [0.0, 0.3, 1.0])
def test_evidence_is_trust_less_the_lean_plus_contrast_plus_half_the_surprise(lean):
    known, negative = (torch.randn(5, n, generator=torch.Generator().manual_seed(n)).double() * 3 for n in (4, 9))
    trust = known.exp().sum(1).log() - negative.exp().sum(1).log()
    contrast, apart = known.amax(1) - known.mean(1), known.mean(1) - negative.mean(1)
    variance = (4 * known.var(1, correction=0) + 10 * negative.var(1, correction=0)) / 14
    found = evidence(TextLogits(known, negative), lean)
    torch.testing.assert_close(found.known, trust - lean * apart + contrast + contrast**2 / variance / 4)
    torch.testing.assert_close(found.spread.far_deviation, negative.std(1, correction=0))


@pytest.mark.parametrize("count", [4, 10, 200])
def test_the_spread_of_names_is_that_of_their_draws_whether_or_not_one_is_right(count):
    known = 3 + 2 * torch.randn(20_000, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for hit, off in ((0.0, 0.05), (15.0, 0.35)):
        known[:, 0] += hit
        mean, variance = known.mean(1), known.var(1, correction=0)
        mean, deviation = without_the_best(mean, variance, known.amax(1), count)
        assert float(deviation.square().mean().sqrt()) == pytest.approx(2, rel=off)
        assert float(mean.mean()) == pytest.approx(3, abs=2 * off + 0.1)


def test_few_names_spread_as_they_do():
    mean, deviation = without_the_best(torch.tensor([1.0]), torch.tensor([4.0]), torch.tensor([3.0]), 2)
    assert (float(mean), float(deviation)) == (1, 2)


def test_moving_all_negatives_changes_nothing_when_the_lean_is_whole():
    known, negative = (torch.randn(5, n, generator=torch.Generator().manual_seed(n)).double() for n in (4, 9))
    moved = [evidence(TextLogits(known, negative + by), 1.0).known for by in (0.0, 7.0)]
    torch.testing.assert_close(*moved)


@pytest.mark.parametrize(("known", "negative"), [(1, 1), (1, 5), (2, 1)])
def test_evidence_of_very_few_words_is_finite(known, negative):
    labels = space(known, negative, 6)
    detector = PooledEvidence(labels)
    reading, state = detector.observe(detector.start(), stream(labels, 40))
    assert bool(reading.score.isfinite().all())
    assert bool(detector.score(state, stream(labels, 5)).score.isfinite().all())


def test_one_cloud_of_words_does_not_lean_and_two_clouds_do():
    words, apart = unit(300, 256, seed=0), unit(1, 256, seed=1)
    one = LabelSpace(names("n", 60), names("f", 240), words[:60], words[60:])
    two = LabelSpace(names("n", 60), names("f", 240), words[:60], normalize(words[60:] + 0.8 * apart, dim=1))
    assert PooledEvidence(one).lean < 0.2  # what chance alone shows, give or take
    assert PooledEvidence(two).lean > 0.9


def test_a_single_name_does_not_lean_for_its_distance_may_be_its_meaning():
    words = normalize(unit(21, 8, seed=3) + torch.eye(21, 8)[:, :1].double(), dim=1)
    assert PooledEvidence(LabelSpace(("one",), names("f", 20), words[:1], words[1:])).lean == 0.0


def names(stem: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}{i}" for i in range(count))


@pytest.mark.parametrize("order", ["observe", "score"])
def test_without_a_share_the_score_is_the_frozen_evidence(labels, order):
    detector, z = PooledEvidence(labels, share=0.0), stream(labels, 100)
    expected = evidence(text_logits(labels, z, tau=detector.tau), detector.lean).known
    reading, state = detector.observe(detector.start(), z)
    got = reading if order == "observe" else detector.score(state, z)
    torch.testing.assert_close(got.score, expected)


def test_the_say_of_the_pool_is_earned():
    detector, seen = PooledEvidence(space(dim=16)), torch.tensor(100_000)

    def say(f: Tensor, u: Tensor) -> Say:
        errors = torch.stack([(f - f.mean()).square().sum(), (f - u).square().sum()])
        return detector._say(Record(seen, errors * seen / len(f), *(powers(x).mean(0) * seen for x in (f, u))))

    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, generator=generator, dtype=torch.float64)
    side = (torch.rand(20_000, generator=generator) < 0.3).double()
    nothing = say(10 + noise, torch.full_like(noise, 10.0))
    groups = say(10 + 4 * side + noise, 10 + 4 * side)
    smooth = say(10 + 4 * noise + noise.roll(1), 10 + 4 * noise)
    blurred = say(10 + 4 * side + 0.8 * noise, 10 + 2 * noise.roll(1) + 4 * side)
    assert float(nothing.slopes) == pytest.approx(0, abs=1e-6)
    assert float(nothing.whole) == pytest.approx(0.5, abs=1e-3)
    assert float(groups.slopes) > 0.95
    assert float(groups.whole) > 0.95
    assert float(smooth.slopes) > 0.9  # likes foretell evidence, but there is one group only
    assert float(smooth.whole) < 0.6
    assert float(blurred.slopes) < 0.6  # two groups that pooling smears
    assert float(groups.level) == pytest.approx(11.2, abs=0.1)


def test_a_new_stream_has_earned_nothing(labels):
    detector, z = PooledEvidence(labels), stream(labels, 30)
    own = evidence(text_logits(labels, z, tau=detector.tau), detector.lean).known
    torch.testing.assert_close(detector.score(detector.start(), z).score, own)
    reading, _ = detector.observe(detector.start(), z[:1])
    torch.testing.assert_close(reading.score, own[:1])


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_two_points_are_wholly_two_sided_whatever_their_weights(share):
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(50_000, generator=generator) < share).double() * 7 + 20
    normal = 20 + 3 * torch.randn(50_000, generator=generator, dtype=torch.float64)
    found = [float(two_sided(powers(x).sum(0), torch.tensor(len(x)), 0.0)) for x in (points, normal)]
    assert found[0] == pytest.approx(1, abs=1e-6)
    assert found[1] == pytest.approx(1 / 3, abs=0.01)


def test_two_sidedness_starts_from_a_normal():
    sums = powers(torch.tensor([1.0, 9.0, 1.0], dtype=torch.float64)).sum(0)
    assert float(two_sided(sums, torch.tensor(3), 20.0)) == pytest.approx(1 / 3)


def test_the_record_is_what_came_before_each_sample(labels):
    detector, z = PooledEvidence(labels), stream(labels, 50)
    f = evidence(text_logits(labels, z, tau=detector.tau), detector.lean).known
    _, state = detector.observe(detector.start(), z)
    lesson, _, _ = one_by_one(with_level(z), f, detector.start().weight, detector.start().cov)
    level = torch.stack([f[:i].mean() for i in range(1, 50)])
    weight = torch.arange(1, 50) / torch.arange(2, 51)
    torch.testing.assert_close(state.errors[0], ((f[1:] - level).square() * weight).sum())
    torch.testing.assert_close(state.errors[1], ((f - lesson.predicted).square() / (1 + lesson.leverage))[1:].sum())
    torch.testing.assert_close(state.own, powers(f).sum(0))
    torch.testing.assert_close(state.pooled, powers(lesson.predicted[1:]).sum(0))


def test_the_guard_keeps_its_own_evidence_where_the_pool_would_extrapolate():
    labels = space(dim=32)
    centre = unit(1, 32, seed=7)
    near = normalize(centre + 0.02 * torch.randn(600, 32, generator=torch.Generator().manual_seed(0)).double(), dim=1)
    far = normalize(-centre + 0.1 * unit(5, 32, seed=8), dim=1)
    detector = PooledEvidence(labels)
    _, state = detector.observe(detector.start(), near)
    own = [evidence(text_logits(labels, z, tau=detector.tau), detector.lean).known for z in (near[:50], far)]
    moved = [(detector.score(state, z).score - f).abs() for z, f in zip((near[:50], far), own, strict=True)]
    assert float(moved[0].mean()) > 0.1
    assert float(moved[1].max()) < 1e-6
    unguarded = PooledEvidence(labels, reach=1e6).score(state, far).score
    assert float((unguarded - own[1]).abs().min()) > 0.1


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


@pytest.mark.parametrize(
    ("known", "negative", "known_deviation", "far_deviation", "shift"),
    [(200, 742, 1.0, 1.0, 0.0), (200, 742, 2.5, 2.5, 0.5), (1000, 10_499, 3.0, 2.0, -3.5), (6, 2000, 2.0, 2.2, -5.0)],
)
def test_even_is_the_typical_evidence_of_logits_that_are_two_normals(
    known, negative, known_deviation, far_deviation, shift
):
    generator = torch.Generator().manual_seed(0)
    near = shift + known_deviation * torch.randn(400, known, generator=generator, dtype=torch.float64)
    far = far_deviation * torch.randn(400, negative, generator=generator, dtype=torch.float64)
    detector = PooledEvidence(space(known, negative, 2))
    found = evidence(TextLogits(near, far), detector.lean)
    even = detector._even(Spread(*(part.mean() for part in found.spread)))
    # second order: the log of a sum of few draws is lower than that of its mean, the square of a maximum higher
    assert float(found.known.mean()) == pytest.approx(float(even), abs=1.0)


def test_the_energy_of_draws_is_typical_on_both_sides_of_the_freezing():
    generator = torch.Generator().manual_seed(0)
    for count, deviation in ((5000, 1.0), (5000, 3.0), (200, 3.0)):
        drawn = deviation * torch.randn(500, count, generator=generator, dtype=torch.float64)
        typical = float(drawn.logsumexp(1).median())
        assert float(energy_of_draws(count, torch.tensor(deviation))) == pytest.approx(typical, abs=0.7)


def test_even_follows_the_mean_spread_of_the_stream_so_far(labels):
    detector, z = PooledEvidence(labels, share=0.0), stream(labels, 60)
    spread = evidence(text_logits(labels, z, tau=detector.tau), detector.lean).spread
    reading, state = detector.observe(detector.start(), z)
    running = Spread(*(part.cumsum(0) / torch.arange(1, 61) for part in spread))
    torch.testing.assert_close(reading.baseline, detector._even(running))
    again = Spread(*((part.sum() + part) / 61 for part in spread))
    torch.testing.assert_close(detector.score(state, z).baseline, detector._even(again))


def test_the_level_of_the_stream_does_not_move_the_line():
    # the pool is never believed, so that scores are half the level: a margin must be half a sample's own
    labels = space(6, 30, 24)
    detector, z = PooledEvidence(labels, enough=1e6, reach=1e6), stream(labels, 200)
    reading, state = detector.observe(detector.start(), z)
    own = PooledEvidence(labels, share=0.0).observe(detector.start(), z)[0]
    seen = torch.arange(200)
    kept = 1 - 0.5 * seen / (seen + detector.ridge)
    torch.testing.assert_close(reading.score - reading.baseline, kept * (own.score - own.baseline))
    later = detector.score(state, z[:5])
    plain = PooledEvidence(labels, share=0.0).score(state, z[:5])
    torch.testing.assert_close(
        later.score - later.baseline, (1 - 0.5 * 200 / (200 + detector.ridge)) * (plain.score - plain.baseline)
    )


def test_a_vote_needs_more_than_half_of_the_posterior():
    known = torch.tensor([[0.0, 3.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    ballot = votes(TextLogits(known, known))
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
    plain = PooledEvidence(labels, balance=0.0)
    assert torch.equal(plain.score(state, z).label, text.known.argmax(1))


def test_cutting_a_long_stream_changes_nothing():
    labels = space(4, 20, 8)
    detector, z = PooledEvidence(labels), stream(labels, 12_000)
    whole, end = detector.observe(detector.start(), z)
    state, parts = detector.start(), []
    for piece in z.split([1, 6, 500, 513, 2000, 8980]):
        reading, state = detector.observe(state, piece)
        parts.append(reading.score)
    torch.testing.assert_close(torch.cat(parts), whole.score, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(state.cov, end.cov, rtol=1e-6, atol=1e-10)


def test_the_covariance_stays_positive_and_symmetric_over_a_very_long_stream():
    labels = space(3, 6, 8, dtype=torch.float32)
    detector, z = PooledEvidence(labels), stream(labels, 2000).float()
    state = detector.start()
    for _ in range(50):
        reading, state = detector.observe(state, z)
    assert int(state.seen) == 100_000
    assert float(torch.linalg.eigvalsh(state.cov).min()) > 0
    torch.testing.assert_close(state.cov, state.cov.T, rtol=1e-6, atol=1e-12)
    assert bool(reading.score.isfinite().all())


def test_the_state_is_the_square_of_the_width_and_one_number_a_name():
    labels = space(7, 30, 12)
    detector = PooledEvidence(labels)
    _, state = detector.observe(detector.start(), stream(labels, 50))
    assert sum(part.numel() for part in state) == 13 * 13 + 13 + 7 + 15


def test_it_pools_where_it_pays():
    # unknown images share a direction that the noisy text hardly reads: their neighbours tell
    labels = space(20, 60, 48)
    generator = torch.Generator().manual_seed(0)
    is_id = torch.rand(3000, generator=generator) < 0.5
    known = labels.id_anchors[torch.randint(20, (3000,), generator=generator)]
    centre = torch.where(is_id[:, None], 0.6 * known, 0.6 * unit(1, 48, seed=9))
    z = normalize(centre + 0.14 * torch.randn(3000, 48, generator=generator, dtype=torch.float64), dim=1)
    rank = {}
    for share in (0.0, 0.5):
        detector = PooledEvidence(labels, share=share)
        score = detector.observe(detector.start(), z)[0].score[1000:]
        wins = score[is_id[1000:]][:, None] > score[~is_id[1000:]][None]
        rank[share] = float(wins.double().mean())
    assert rank[0.5] > rank[0.0] + 0.02


@pytest.mark.parametrize(
    "options", [{"share": 1.5}, {"share": -0.1}, {"balance": 2.0}, {"tau": 0.0}, {"reach": -1.0}, {"enough": 0.0}]
)
def test_settings_out_of_range_are_refused(labels, options):
    with pytest.raises(SettingError, match=f"expected {next(iter(options))}"):
        PooledEvidence(labels, **options)


def test_it_needs_negatives():
    with pytest.raises(LabelError, match="expected a label space with negatives for 'pooled'"):
        PooledEvidence(space(3, 0))
