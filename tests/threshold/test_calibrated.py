"""Thresholds that stand still: a fixed one, and one that images of known names guarantee."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.margins import normal, two_modes
from helpers.streams import stream
from unseen import Session, threshold
from unseen.detectors import MCM, PooledEvidence
from unseen.errors import SettingError
from unseen.threshold import Adaptive, Calibrated, Fixed, calibrated, calibration
from unseen.threshold.calibrated import check_images, conformal_rank, fewest_images, odd_images, recall_interval


def test_a_fixed_threshold_does_not_move():
    decisions, state = Fixed(1.5).learn(None, torch.zeros(3))
    assert decisions.threshold.tolist() == [1.5] * 3
    assert not decisions.warming.any()
    assert state is None


def test_an_unknown_rule_or_setting_is_refused():
    with pytest.raises(SettingError, match="expected a threshold out of adaptive, calibrated, fixed, got 'sharp'"):
        threshold.make("sharp")
    with pytest.raises(SettingError, match=r"expected settings of 'fixed', got \['cut'\]"):
        threshold.make("fixed", cut=1.0)


def test_the_fewest_images_are_those_with_a_rank():
    assert [fewest_images(recall) for recall in (0.5, 0.9, 0.95, 0.99)] == [1, 9, 19, 99]
    for recall in (0.5, 0.8, 0.9, 0.95, 0.99, 0.995):
        least = fewest_images(recall)
        assert conformal_rank(least, recall) >= 1
        assert conformal_rank(least - 1, recall) == 0


@pytest.mark.parametrize(("recall", "words"), [(0, "0.95 is customary"), (1, "0.95 is customary"), (95, "write 0.95")])
def test_a_recall_that_is_no_share_is_refused(recall, words):
    for refused in (fewest_images, lambda r: calibrated(torch.zeros(50), recall=r), lambda r: Calibrated(r, 50)):
        with pytest.raises(SettingError, match=f"expected a recall between 0 and 1, got {recall}; {words}"):
            refused(recall)


def test_too_few_images_are_refused_with_the_number_needed():
    with pytest.raises(SettingError, match=r"at least 19 known images for a recall of 0\.95, got 18.*at most 0\.947"):
        check_images(18, 0.95)
    for refused in (Calibrated, lambda: calibrated(torch.arange(18.0), recall=0.95)):
        with pytest.raises(SettingError, match="at least 19 known images"):
            refused()


@given(st.integers(1, 300), st.floats(0.5, 0.98))
def test_the_interval_holds_the_stated_share_of_a_beta_distribution(images, recall):
    scipy = pytest.importorskip("scipy.stats")
    rank = conformal_rank(images, recall)
    if rank:
        expected = scipy.beta(images + 1 - rank, rank).ppf([0.05, 0.95])
        assert recall_interval(images, recall) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("images", [20, 50, 200])
def test_a_new_known_image_passes_as_often_as_promised(images):
    generator = torch.Generator().manual_seed(0)
    found = calibration(torch.rand(images, generator=generator), recall=0.95)
    draws = torch.rand(4000, images, generator=generator).sort(dim=1).values
    true_recall = 1 - draws[:, conformal_rank(images, 0.95) - 1]
    inside = (true_recall >= found.low) & (true_recall <= found.high)
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.02)
    assert float(true_recall.double().mean()) >= 0.95 - 0.002


def test_calibration_takes_the_conformal_rank_whatever_the_stream_says():
    assert calibrated(torch.arange(1.0, 20.0), recall=0.95).threshold == 1.0
    assert calibrated(torch.arange(1.0, 100.0), recall=0.9).threshold == 10.0
    rule = Calibrated(0.95, 59)
    state = rule.calibrated_state(rule.inner.start(), torch.arange(1.0, 60.0), at=7)
    for _ in range(2):
        decisions, state = rule.learn(state, two_modes(300)[0])
        assert set(decisions.threshold.tolist()) == {3.0}
        assert not decisions.warming.any()
    assert rule.recall_interval(state) == recall_interval(59, 0.95)


def test_p_known_is_that_of_the_stream_however_it_is_divided():
    margin, _ = two_modes(300)
    rule, inner = Calibrated(0.9, 50, in_nats=True), Adaptive(0.9, in_nats=True)
    state = rule.calibrated_state(inner.start(), normal(50, 8, 3), at=0)
    whole, end = rule.learn(state, margin)
    first, middle = rule.learn(state, margin[:130])
    second, _ = rule.learn(middle, margin[130:])
    expected, stream_end = inner.learn(inner.start(), margin)
    torch.testing.assert_close(whole.p_known, expected.p_known)
    torch.testing.assert_close(torch.cat([first.p_known, second.p_known]), whole.p_known, rtol=1e-6, atol=1e-6)
    assert torch.equal(rule.p_known(end, margin), inner.p_known(stream_end, margin))
    assert threshold.make("calibrated", **rule.settings) == rule


def test_images_far_below_the_others_are_odd_and_seldom_others():
    known, unknown = normal(45, 5, 2), normal(5, -9, 1, seed=1)
    mixed = torch.cat([known[:20], unknown, known[20:]])
    found = odd_images(mixed)
    assert sorted(found.tolist()) == list(range(20, 25))
    assert mixed[found].tolist() == sorted(mixed[found].tolist())
    assert sum(len(odd_images(normal(50, 5, 2, seed=seed))) > 0 for seed in range(40)) <= 2
    assert not len(odd_images(torch.full((30,), 2.0)))
    assert not len(odd_images(torch.zeros(0)))


# sessions


def test_a_guarantee_holds_without_learning_and_is_saved_and_resumed(labels, tmp_path):
    session = Session(PooledEvidence(labels))
    session.observe(stream(labels, 100))
    before, known = session.snapshot, stream(labels, 60, seed=5)
    margins = session.score(known).margin
    found = session.calibrate(known, recall=0.9, guarantee=True)
    assert session.threshold == found.threshold == calibrated(margins, recall=0.9).threshold
    assert (found.images, found.recall) == (60, 0.9)
    assert session.snapshot.detector is before.detector
    assert session.snapshot.tally is before.tally
    assert not session.is_warming
    session.observe(stream(labels, 30, seed=6))
    assert session.threshold == found.threshold
    assert int(session.snapshot.threshold.at) == 100
    session.save(tmp_path / "s")
    again, z = Session.load(tmp_path / "s", labels), stream(labels, 50, seed=9)
    assert again.rule == session.rule
    assert torch.equal(again.observe(z).p_known, session.observe(z).p_known)


def test_a_detector_without_nats_is_calibrated_by_a_guarantee_and_again(labels):
    session, z = Session(MCM(labels), Fixed(0.0)), stream(labels, 100)
    session.calibrate(z[:40])
    session.calibrate(z, recall=0.8)
    assert session.rule == Calibrated(0.8, 100)
