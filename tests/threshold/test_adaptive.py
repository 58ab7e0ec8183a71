from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.margins import gumbel, normal, two_modes
from unseen import Session
from unseen.detectors import NegLabel, PooledEvidence
from unseen.errors import SettingError
from unseen.threshold import Adaptive, Decisions, Fixed
from unseen.threshold.mixture import fit_mixture
from unseen.threshold.nodes import NODES
from unseen_bench import suites


@pytest.mark.parametrize("recall", [0.0, 1.0, 1.5])
def test_a_recall_outside_its_range_is_refused(recall):
    with pytest.raises(SettingError, match="expected a recall between 0 and 1"):
        Adaptive(recall)


def test_a_window_shorter_than_its_steps_is_refused():
    with pytest.raises(SettingError, match="expected 1 <= every <= window"):
        Adaptive(every=64, window=32)


@pytest.mark.parametrize("recall", [0.9, 0.95])
def test_without_a_baseline_about_the_wanted_share_of_a_clear_upper_mode_is_accepted(recall):
    margin, is_id = two_modes(4000)
    rule = Adaptive(recall)
    decisions, _ = rule.learn(rule.start(), margin)
    late = torch.arange(4000) >= 1000
    accepted = margin >= decisions.threshold
    assert float(accepted[late & is_id].double().mean()) == pytest.approx(recall, abs=0.03)
    assert float(accepted[late & ~is_id].double().mean()) < 0.02


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("shift", [-100.0, 0.0])
def test_without_a_baseline_moved_and_scaled_margins_give_the_same_decisions(shift, scale):
    margin = two_modes(1000)[0].double()
    rule = Adaptive()
    one, two = (rule.learn(rule.start(), m)[0] for m in (margin, shift + scale * margin))
    torch.testing.assert_close(two.threshold[128:], shift + scale * one.threshold[128:], rtol=1e-4, atol=1e-4 * scale)
    torch.testing.assert_close(two.p_known[128:], one.p_known[128:], rtol=0, atol=1e-4)


def mixed(count: int, *, share: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Margins of a stream in nats from the baseline, and which images are known."""
    is_known = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < share
    return torch.where(is_known, normal(count, 9, 5.4, seed=seed), gumbel(count, -6, 3, seed=seed + 1)), is_known


@pytest.mark.parametrize(("share", "least"), [(0.3, 0.89), (0.5, 0.91), (0.7, 0.91)])
@pytest.mark.parametrize("seed", range(3))
def test_with_a_baseline_the_wanted_share_is_kept_and_less_where_known_images_are_few(share, least, seed):
    margin, is_known = mixed(2000, share=share, seed=seed)
    rule = Adaptive(derives_baseline=True)
    _, state = rule.learn(rule.start(), margin)
    kept = float((normal(20_000, 9, 5.4, seed=50) >= rule.threshold_of(state)).double().mean())
    assert least <= kept <= 0.98
    assert float((margin[~is_known] >= rule.threshold_of(state)).double().mean()) < 0.1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_with_a_baseline_confidence_is_calibrated(share):
    margin, is_known = mixed(6000, share=share)
    rule = Adaptive(derives_baseline=True)
    p_known = rule.learn(rule.start(), margin)[0].p_known
    assert bool(((p_known >= 0) & (p_known <= 1)).all())
    assert expected_calibration_error(p_known[500:], is_known[500:]) < 0.05


def expected_calibration_error(p_known: Tensor, is_known: Tensor) -> float:
    """The mean distance of p_known and share of known images in ten bins of p_known."""
    bins = (10 * p_known).long().clamp(max=9)
    gaps = [(p_known[bins == b] - is_known[bins == b].double()).sum().abs() for b in range(10)]
    return float(sum(gaps) / len(p_known))


@pytest.mark.parametrize("derives_baseline", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decisions_have_the_dtype_of_margins_and_confidence_is_a_probability(dtype, derives_baseline):
    rule = Adaptive(derives_baseline=derives_baseline)
    margin = torch.cat([two_modes(300)[0], torch.tensor([1e6, -1e6])]).to(dtype)
    decisions, state = rule.learn(rule.start(), margin)
    assert decisions.threshold.dtype == decisions.p_known.dtype == dtype
    assert bool(((decisions.p_known >= 0) & (decisions.p_known <= 1)).all())
    assert len(rule.learn(state, margin[:0])[0].threshold) == 0


def test_before_any_margin_the_threshold_is_that_of_the_prior():
    rule, empty = Adaptive(derives_baseline=True), torch.zeros(NODES, dtype=torch.float64)
    assert rule.threshold_of(rule.start()) == float(fit_mixture(empty, empty, 0.95).threshold)


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
    torch.testing.assert_close(torch.cat(parts), whole.threshold, rtol=0, atol=1e-5)
    torch.testing.assert_close(state, end, rtol=1e-9, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_abrupt_changes_are_followed_alike_however_the_stream_is_divided(seed):
    generator = torch.Generator().manual_seed(seed)
    far, near, huge = gumbel(300, -14, 2), gumbel(400, 1, 3), torch.full((40,), 1e30, dtype=torch.float64)
    margin = torch.cat([normal(200, 11, 5.5), far, huge, near, normal(60, 11, 5.5), -huge])
    clarity = torch.rand(len(margin), generator=generator, dtype=torch.float64) / 4
    clarity[::7], clarity[::11] = torch.inf, -torch.inf
    sizes, rule = torch.randint(1, 90, (len(margin),), generator=generator).tolist(), Adaptive(derives_baseline=True)
    whole, _ = rule.learn(rule.start(), margin, clarity)
    state, parts, start = rule.start(), [], 0
    while start < len(margin):
        rows = slice(start, start + sizes.pop())
        decisions, state = rule.learn(state, margin[rows], clarity[rows])
        parts.append(decisions)
        start = rows.stop
        assert (state.probability.diff() >= -1e-12).all()
    for found, expected in zip(Decisions.joined(parts), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert ((whole.p_known >= 0) & (whole.p_known <= 1)).all()


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
    known_units = Adaptive(derives_baseline=True)
    assert known_units.learn(known_units.start(), two_modes(1000)[0])[1].ring.shape == (0,)
