from __future__ import annotations

import pytest
import torch

from helpers.margins import normal, two_modes
from unseen import Session, suites
from unseen.detectors import NegLabel, PooledEvidence
from unseen.errors import SettingError
from unseen.threshold import Adaptive, Fixed


@pytest.mark.parametrize("recall", [0.0, 1.0, 1.5])
def test_a_recall_outside_its_range_is_refused(recall):
    with pytest.raises(SettingError, match="expected a recall between 0 and 1"):
        Adaptive(recall)


def test_a_window_shorter_than_its_steps_is_refused():
    with pytest.raises(SettingError, match="expected 1 <= every <= window"):
        Adaptive(every=64, window=32)


@pytest.mark.parametrize("recall", [0.9, 0.95])
def test_the_wanted_share_of_the_upper_mode_is_accepted(recall):
    margin, is_id = two_modes(4000)
    rule = Adaptive(recall)
    decisions, _ = rule.learn(rule.start(), margin)
    late = torch.arange(4000) >= 1000
    accepted = margin >= decisions.threshold
    assert float(accepted[late & is_id].double().mean()) == pytest.approx(recall, abs=0.03)
    assert float(accepted[late & ~is_id].double().mean()) < 0.02


def test_without_a_baseline_the_threshold_is_zero_until_warm():
    rule = Adaptive(warmup=100, every=10)
    margin, _ = two_modes(150)
    decisions, _ = rule.learn(rule.start(), margin)
    assert decisions.warming.tolist() == [True] * 100 + [False] * 50
    assert set(decisions.threshold[:100].tolist()) == {0.0}
    assert decisions.threshold[100] != 0.0


@pytest.mark.parametrize("unknown_first", [False, True])
@pytest.mark.parametrize("unknown_mean", [-4.0, -1.0, 0.0])
def test_with_a_baseline_the_recall_holds_where_one_kind_comes_first(unknown_mean, unknown_first):
    known, unknown = normal(2000, 8, 4), normal(2000, unknown_mean, 2, seed=1)
    margin = torch.cat([unknown, known] if unknown_first else [known, unknown])
    rule = Adaptive(derives_baseline=True)
    decisions, _ = rule.learn(rule.start(), margin)
    met = decisions.threshold[2000:] if unknown_first else decisions.threshold[:2000]
    assert 0.89 <= float((known >= met).double().mean()) <= 0.98


def test_with_a_baseline_the_threshold_is_set_from_the_first_margin_on():
    rule = Adaptive(derives_baseline=True)
    decisions, _ = rule.learn(rule.start(), normal(200, 9, 4))
    assert decisions.threshold[:16].unique().numel() == 16
    assert decisions.warming.tolist() == [True] * 128 + [False] * 72
    assert float(decisions.threshold[0]) == rule.threshold_of(rule.start())


def test_with_a_baseline_the_threshold_is_updated_whenever_the_stream_grows_by_an_eighth():
    rule = Adaptive(derives_baseline=True)
    decisions, _ = rule.learn(rule.start(), normal(2000, 9, 4))
    moved = 1 + (decisions.threshold.diff() != 0).nonzero().squeeze(1)
    assert moved.diff().max() == rule.every
    assert all(step <= max(1, n / 8) for n, step in zip(moved[:-1].tolist(), moved.diff().tolist(), strict=True))


def test_for_detector_sets_derives_baseline_of_adaptive_only():
    assert Adaptive(0.9).for_detector(derives_baseline=True) == Adaptive(0.9, derives_baseline=True)
    assert Fixed(1.0).for_detector(derives_baseline=True) == Fixed(1.0)


def test_a_session_takes_derives_baseline_from_the_detector(labels):
    assert Session(PooledEvidence(labels)).rule == Adaptive(derives_baseline=True)
    assert Session(NegLabel(labels)).rule == Adaptive(derives_baseline=False)


@pytest.mark.data
@pytest.mark.parametrize("order", ["shuffled", "id_first", "ood_first", "id_only"])
@pytest.mark.parametrize(("suite", "unknown"), [("imagenet200", "textures10"), ("imagenet200", "flowers102")])
def test_real_streams_accept_the_wanted_share_of_known_images(features, suite, unknown, order):
    suite = suites.load(suite, features)
    trial = suite.against(unknown).ordered(order, 0)
    verdicts = Session(PooledEvidence(suite.labels)).observe(trial.z)
    assert float(verdicts.known[trial.is_id].double().mean()) >= 0.92


@pytest.mark.parametrize("derives_baseline", [False, True])
@pytest.mark.parametrize("pieces", [[1] * 500, [499, 1], [63, 1, 64, 372], [7, 0, 493]])
def test_splitting_the_stream_into_calls_changes_no_threshold(pieces, derives_baseline):
    rule = Adaptive(window=256, derives_baseline=derives_baseline)
    margin, _ = two_modes(500)
    whole, end = rule.learn(rule.start(), margin)
    state, parts = rule.start(), []
    for piece in margin.split(pieces):
        decisions, state = rule.learn(state, piece)
        parts.append(decisions.threshold)
    assert torch.equal(torch.cat(parts), whole.threshold)
    assert all(torch.equal(a, b) for a, b in zip(state, end, strict=True))


def test_a_threshold_does_not_depend_on_later_samples():
    rule = Adaptive(warmup=64, every=64)
    margin, _ = two_modes(200)
    other = margin.clone()
    other[150:] += 100
    first, second = (rule.learn(rule.start(), s)[0].threshold for s in (margin, other))
    assert torch.equal(first[:151], second[:151])


def test_memory_is_the_window():
    rule = Adaptive(window=128)
    _, state = rule.learn(rule.start(), two_modes(1000)[0])
    assert state.ring.shape == (128,)
    assert int(state.seen) == 1000
