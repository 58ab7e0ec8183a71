import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.margins import normal, two_modes
from helpers.streams import space, stream
from unseen import Session, threshold
from unseen.detectors import MCM, PooledEvidence
from unseen.errors import SettingError
from unseen.threshold import Adaptive, Calibrated, Fixed, calibrated, calibration
from unseen.threshold.calibrated import check_images, conformal_rank, fewest_images, recall_interval, suspects


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
    with pytest.raises(SettingError, match="at least 19 known images"):
        Calibrated()
    with pytest.raises(SettingError, match="expected a base out of adaptive, fixed"):
        Calibrated(images=50, base="nobody")


@given(st.integers(1, 300), st.floats(0.5, 0.98))
@settings(max_examples=30, deadline=None)
def test_the_interval_holds_the_stated_share_of_a_beta_distribution(images, recall):
    scipy = pytest.importorskip("scipy.stats")
    rank = conformal_rank(images, recall)
    if rank:
        expected = scipy.beta(images + 1 - rank, rank).ppf([0.05, 0.95])
        assert recall_interval(images, recall) == pytest.approx(expected, abs=1e-9)


def test_the_true_recall_lies_in_the_interval_in_nine_of_ten_calibrations():
    generator = torch.Generator().manual_seed(0)
    for images in (20, 50, 200):
        found = calibration(torch.rand(images, generator=generator), recall=0.95)
        draws = torch.rand(4000, images, generator=generator).sort(dim=1).values
        true_recall = 1 - draws[:, conformal_rank(images, 0.95) - 1]
        inside = (true_recall >= found.low) & (true_recall <= found.high)
        assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.02)
        assert float(true_recall.double().mean()) >= 0.95 - 0.002


def calibrated_rule(margins, *, recall=0.95, base=None):
    rule = Calibrated.of(base or Fixed(0.0), recall=recall, images=len(margins))
    return rule, rule.calibrated_state(rule.inner.start(), margins, at=7)


def test_the_threshold_is_conformal_and_a_lower_one_of_the_stream_counts_as_one_image():
    margins = torch.arange(1.0, 60.0)  # k = 3: the conformal threshold is 3
    for stream_threshold, expected in ((10.0, 3.0), (3.0, 3.0), (-1.0, (3 * 3 - 1) / 4)):
        rule, state = calibrated_rule(margins, base=Fixed(stream_threshold))
        assert rule.threshold_of(state) == pytest.approx(expected)
        decisions, _ = rule.learn(state, torch.zeros(2))
        assert decisions.threshold.tolist() == pytest.approx([expected] * 2)
        assert not decisions.warming.any()


@given(st.integers(19, 80), st.floats(-3, 3), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_threshold_is_never_above_the_conformal_one(images, base, seed):
    margins = torch.randn(images, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rule, state = calibrated_rule(margins, base=Fixed(base))
    assert rule.threshold_of(state) <= calibrated(margins, recall=0.95).threshold


def test_a_new_known_image_passes_with_the_wanted_probability_also_with_an_adaptive_base():
    generator, passed = torch.Generator().manual_seed(1), []
    mixed, _ = two_modes(400)
    adaptive = Adaptive(derives_baseline=True)
    _, learned = adaptive.learn(adaptive.start(), mixed)
    for _ in range(400):
        margins = 8 + 3 * torch.randn(40, generator=generator, dtype=torch.float64)
        rule = Calibrated.of(adaptive, recall=0.95, images=39)
        state = rule.calibrated_state(learned, margins[1:], at=400)
        passed.append(float(margins[0]) >= rule.threshold_of(state))
    assert sum(passed) / len(passed) >= 0.93


def test_without_calibration_margins_it_is_its_base():
    rule = Calibrated(images=50, base="fixed", base_settings={"threshold": 2.0})
    assert rule.threshold_of(rule.start()) == 2.0


def test_splitting_the_stream_changes_nothing():
    rule, state = calibrated_rule(normal(50, 8, 3), base=Adaptive(derives_baseline=True))
    margin, _ = two_modes(300)
    whole, end = rule.learn(state, margin)
    first, middle = rule.learn(state, margin[:130])
    second, last = rule.learn(middle, margin[130:])
    parts = torch.cat([first.threshold, second.threshold])
    torch.testing.assert_close(parts, whole.threshold, rtol=0, atol=1e-5)
    assert rule.threshold_of(last) == pytest.approx(rule.threshold_of(end), abs=1e-5)


def test_the_confidence_is_that_of_the_base():
    rule, state = calibrated_rule(normal(50, 8, 3))
    margin = torch.tensor([-1.0, 0.0, 2.0])
    assert torch.equal(rule.read(state, margin).p_known, Fixed(0.0).p_known(None, margin))


def test_a_base_with_a_recall_aims_at_that_of_the_calibration():
    rule = Calibrated.of(Adaptive(0.95), recall=0.9, images=50)
    assert rule.inner == Adaptive(0.9)
    again = Calibrated.of(rule, recall=0.8, images=20)
    assert (again.inner, again.images) == (Adaptive(0.8), 20)
    assert rule.for_detector(derives_baseline=True).inner == Adaptive(0.9, derives_baseline=True)
    assert threshold.make("calibrated", **rule.settings) == rule


def test_unknown_images_among_the_known_are_suspected():
    known, unknown = normal(45, 9, 3), normal(5, -1, 1, seed=1)
    mixed = torch.cat([known[:20], unknown, known[20:]])
    found = suspects(mixed, threshold=3.0, recall=0.95)
    assert set(found.tolist()) >= set(range(20, 25))
    assert mixed[found].tolist() == sorted(mixed[found].tolist())
    assert suspects(
        torch.cat([normal(40, 9, 1), torch.tensor([-30.0]).double()]), threshold=-99, recall=0.95
    ).tolist() == [40]


def test_known_images_alone_are_seldom_suspected():
    found = [len(suspects(normal(50, 9, 3, seed=seed), threshold=9 - 1.645 * 3, recall=0.95)) for seed in range(40)]
    assert sum(map(bool, found)) <= 5


# sessions


def test_a_session_is_calibrated_without_learning(labels):
    session = Session(PooledEvidence(labels))
    session.observe(stream(labels, 100))
    before, known = session.snapshot, stream(labels, 60, seed=5)
    margins = session.score(known).margin
    found = session.calibrate(known, recall=0.9)
    assert found.threshold == calibrated(margins, recall=0.9).threshold
    assert session.threshold <= found.threshold
    assert (found.images, found.recall) == (60, 0.9)
    assert session.snapshot.detector is before.detector
    assert session.snapshot.tally is before.tally
    assert int(session.snapshot.threshold.at) == 100
    assert not session.is_warming
    session.observe(stream(labels, 30, seed=6))
    assert int(session.snapshot.threshold.at) == 100


def test_a_session_can_be_calibrated_again(labels):
    session = Session(MCM(labels), Fixed(0.0))
    z = stream(labels, 100)
    session.calibrate(z[:40])
    session.calibrate(z, recall=0.8)
    assert isinstance(session.rule, Calibrated)
    assert (session.rule.images, session.rule.recall, session.rule.base) == (100, 0.8, "fixed")


def test_a_calibrated_session_is_saved_and_resumed(labels, tmp_path):
    session = Session(PooledEvidence(labels))
    session.observe(stream(labels, 50))
    session.calibrate(stream(labels, 40, seed=5))
    session.save(tmp_path / "s")
    again = Session.load(tmp_path / "s", labels)
    assert again.rule == session.rule
    assert again.threshold == session.threshold
    assert int(again.snapshot.threshold.at) == 50
    z = stream(labels, 50, seed=9)
    assert torch.equal(again.observe(z).threshold, session.observe(z).threshold)


def test_too_few_images_change_nothing(labels):
    session = Session(labels)
    rule, snapshot = session.rule, session.snapshot
    with pytest.raises(SettingError, match="at least 19 known images"):
        session.calibrate(stream(labels, 18))
    with pytest.raises(SettingError, match=r"write 0\.95 for 95 %"):
        session.calibrate(stream(labels, 30), recall=95)
    assert session.rule is rule
    assert session.snapshot is snapshot


def test_rejudging_applies_the_threshold_of_now_to_margins_of_then(labels):
    session = Session(PooledEvidence(labels))
    verdicts = session.observe(stream(labels, 300))
    final = session.rejudge(verdicts)
    assert torch.equal(final.margin, verdicts.margin)
    assert final.threshold.tolist() == [session.threshold] * 300
    assert torch.equal(final.known, verdicts.margin >= session.threshold)
    assert not final.warming.any()
    assert len(verdicts.threshold.unique()) > 1
    assert math.isfinite(float(final.p_known.sum()))


def test_a_label_space_of_other_width_is_refused(labels):
    with pytest.raises(ValueError, match="expected features of shape"):
        Session(labels).calibrate(stream(space(dim=labels.dim + 1), 30))
