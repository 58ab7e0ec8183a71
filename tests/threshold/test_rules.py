from __future__ import annotations

import pytest
import torch

from unseen import Session, suites
from unseen.detectors import NegLabel, PooledEvidence
from unseen.errors import SettingError
from unseen.threshold import Adaptive, Fixed, calibrated


def two_modes(count: int, *, seed: int = 0, gap: float = 8.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    is_id = torch.rand(count, generator=generator) < 0.6
    return torch.randn(count, generator=generator) + torch.where(is_id, gap / 2, -gap / 2), is_id


def test_fixed_is_fixed():
    decisions, state = Fixed(1.5).learn(None, torch.zeros(3))
    assert decisions.threshold.tolist() == [1.5] * 3
    assert not decisions.warming.any()
    assert state is None


def test_calibration_keeps_its_promise_on_average_at_small_n():
    # over many draws of 39 known scores a new known image passes with probability at least 0.95: exactly 38/40
    generator = torch.Generator().manual_seed(0)
    passed = []
    for _ in range(4000):
        scores = torch.rand(40, generator=generator)
        passed.append(float(scores[0]) >= calibrated(scores[1:], recall=0.95).threshold)
    assert sum(passed) / len(passed) == pytest.approx(0.95, abs=0.012)


def test_calibration_takes_the_conformal_rank():
    assert calibrated(torch.arange(1.0, 20.0), recall=0.95).threshold == 1.0
    assert calibrated(torch.arange(1.0, 100.0), recall=0.9).threshold == 10.0


def test_calibration_says_how_many_scores_it_needs():
    with pytest.raises(SettingError, match=r"expected at least 19 known margins for a recall of 0\.95, got 18"):
        calibrated(torch.arange(18.0), recall=0.95)


@pytest.mark.parametrize("recall", [0.0, 1.0, 1.5])
def test_a_recall_outside_its_range_is_refused(recall):
    with pytest.raises(SettingError, match="expected a recall between 0 and 1"):
        Adaptive(recall)


def test_a_window_shorter_than_its_steps_is_refused():
    with pytest.raises(SettingError, match="expected 1 <= every <= window"):
        Adaptive(every=64, window=32)


@pytest.mark.parametrize("recall", [0.9, 0.95])
def test_adaptive_keeps_the_wanted_share_of_the_upper_mode(recall):
    score, is_id = two_modes(4000)
    rule = Adaptive(recall)
    decisions, _ = rule.learn(rule.start(), score)
    late = torch.arange(4000) >= 1000
    accepted = score >= decisions.threshold
    assert float(accepted[late & is_id].double().mean()) == pytest.approx(recall, abs=0.03)
    assert float(accepted[late & ~is_id].double().mean()) < 0.02


def test_adaptive_warms_up_at_even_odds():
    rule = Adaptive(warmup=100, every=10)
    score, _ = two_modes(150)
    decisions, _ = rule.learn(rule.start(), score)
    assert decisions.warming.tolist() == [True] * 100 + [False] * 50
    assert set(decisions.threshold[:100].tolist()) == {0.0}
    assert decisions.threshold[100] != 0.0


def normal(count: int, mean: float, deviation: float, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + deviation * torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("unknown_first", [False, True])
@pytest.mark.parametrize("unknown_mean", [-4.0, -1.0, 0.0])
def test_an_anchored_line_keeps_its_promise_in_one_kind_first_orders(unknown_mean, unknown_first):
    known, unknown = normal(2000, 8, 4), normal(2000, unknown_mean, 2, seed=1)
    margin = torch.cat([unknown, known] if unknown_first else [known, unknown])
    rule = Adaptive(derives_baseline=True)
    decisions, _ = rule.learn(rule.start(), margin)
    met = decisions.threshold[2000:] if unknown_first else decisions.threshold[:2000]
    assert 0.89 <= float((known >= met).double().mean()) <= 0.98


def test_an_anchored_line_is_drawn_from_the_first_score_on():
    rule = Adaptive(derives_baseline=True)
    decisions, _ = rule.learn(rule.start(), normal(200, 9, 4))
    assert decisions.threshold[:16].unique().numel() == 16
    assert decisions.warming.tolist() == [True] * 128 + [False] * 72
    assert float(decisions.threshold[0]) == rule.threshold_of(rule.start())


def test_an_anchored_line_moves_as_often_as_the_stream_grows_by_an_eighth():
    rule = Adaptive(derives_baseline=True)
    decisions, _ = rule.learn(rule.start(), normal(2000, 9, 4))
    moved = 1 + (decisions.threshold.diff() != 0).nonzero().squeeze(1)
    assert moved.diff().max() == rule.every
    assert all(step <= max(1, n / 8) for n, step in zip(moved[:-1].tolist(), moved.diff().tolist(), strict=True))


def test_a_rule_is_suited_to_what_the_detector_promises():
    assert Adaptive(0.9).for_detector(derives_baseline=True) == Adaptive(0.9, derives_baseline=True)
    assert Fixed(1.0).for_detector(derives_baseline=True) == Fixed(1.0)


def test_a_session_leans_on_even_odds_where_the_detector_derives_them(labels):
    assert Session(PooledEvidence(labels)).rule == Adaptive(derives_baseline=True)
    assert Session(NegLabel(labels)).rule == Adaptive(derives_baseline=False)


@pytest.mark.data
@pytest.mark.parametrize("order", ["shuffled", "id_first", "ood_first", "id_only"])
@pytest.mark.parametrize(("suite", "unknown"), [("imagenet200", "textures10"), ("imagenet200", "flowers102")])
def test_real_streams_keep_the_known_images_they_promise(features, suite, unknown, order):
    suite = suites.load(suite, features)
    trial = suite.against(unknown).ordered(order, 0)
    verdicts = Session(PooledEvidence(suite.labels)).observe(trial.z)
    assert float(verdicts.known[trial.is_id].double().mean()) >= 0.92


@pytest.mark.parametrize("derives_baseline", [False, True])
@pytest.mark.parametrize("pieces", [[1] * 500, [499, 1], [63, 1, 64, 372], [7, 0, 493]])
def test_cutting_the_stream_changes_no_line(pieces, derives_baseline):
    rule = Adaptive(window=256, derives_baseline=derives_baseline)
    score, _ = two_modes(500)
    whole, end = rule.learn(rule.start(), score)
    state, parts = rule.start(), []
    for piece in score.split(pieces):
        decisions, state = rule.learn(state, piece)
        parts.append(decisions.threshold)
    assert torch.equal(torch.cat(parts), whole.threshold)
    assert all(torch.equal(a, b) for a, b in zip(state, end, strict=True))


def test_the_line_is_drawn_before_the_sample_meets_it():
    rule = Adaptive(warmup=64, every=64)
    score, _ = two_modes(200)
    other = score.clone()
    other[150:] += 100
    first, second = (rule.learn(rule.start(), s)[0].threshold for s in (score, other))
    assert torch.equal(first[:151], second[:151])


def test_memory_is_the_window():
    rule = Adaptive(window=128)
    _, state = rule.learn(rule.start(), two_modes(1000)[0])
    assert state.ring.shape == (128,)
    assert int(state.seen) == 1000
