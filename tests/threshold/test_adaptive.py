"""A threshold that follows a stream: when it moves and what it follows, however the stream is divided into calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.margins import gumbel, normal, two_modes
from unseen import Session
from unseen.detectors import NegLabel, PooledEvidence
from unseen.errors import SettingError
from unseen.threshold import Adaptive, Calibrated, Decisions, Fixed
from unseen.threshold.adaptive import MarginHistory
from unseen.threshold.base import Corrected
from unseen.threshold.mixture import GRID, Told, expected_known_mean, fit_mixture
from unseen_bench import suites

NATS = Adaptive(in_nats=True)


def mixed(count: int, *, share: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Margins of a stream in nats, and which images are known."""
    is_known = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < share
    return torch.where(is_known, normal(count, 5, 2.4, seed=seed), gumbel(count, -5, 2, seed=seed + 1)), is_known


def with_told(rule: Adaptive, state: MarginHistory) -> MarginHistory:
    corrected = Corrected(torch.tensor([0.5, 1.0, -2.0]).double(), torch.tensor([False, False, True]))
    return rule.told(state, normal(20, 3, 2, seed=7), corrected)


def test_settings_out_of_range_are_refused():
    for recall in (0.0, 1.0, 1.5):
        with pytest.raises(SettingError, match="expected a recall between 0 and 1"):
            Adaptive(recall)
    with pytest.raises(SettingError, match="expected 1 <= every <= window"):
        Adaptive(every=64, window=32)


@pytest.mark.parametrize("rule", [NATS, Adaptive(window=256), Adaptive(0.9, 100, 77, in_nats=True), Adaptive(every=48)])
@pytest.mark.parametrize("pieces", [[1] * 700, [699, 1], [63, 1, 64, 372, 200], [7, 0, 493, 200]])
def test_splitting_the_stream_into_calls_changes_nothing(pieces, rule):
    margin, _ = mixed(700)
    start = with_told(rule, rule.start()) if rule.in_nats else rule.start()
    whole, end = rule.learn(start, margin)
    state, parts = start, []
    for piece in margin.split(pieces):
        decisions, state = rule.learn(state, piece)
        parts.append(decisions)
    torch.testing.assert_close(Decisions.joined(parts), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state, end, rtol=1e-9, atol=1e-9)
    assert whole.threshold.unique().numel() > 3


def test_before_any_margin_the_threshold_is_that_of_the_prior_or_zero_where_units_are_unknown():
    empty = torch.zeros(GRID.size, dtype=torch.float64)
    assert NATS.threshold_of(NATS.start()) == float(fit_mixture(empty, empty, Told.none(), 0.95).threshold)
    rule = Adaptive(warmup=100, every=10)
    decisions, _ = rule.learn(rule.start(), two_modes(150)[0])
    assert decisions.warming.tolist() == [True] * 100 + [False] * 50
    assert set(decisions.threshold[:100].tolist()) == {0.0}
    assert decisions.threshold[100] != 0.0


def test_in_nats_the_threshold_moves_from_the_first_margin_on_and_whenever_the_stream_grows_by_an_eighth():
    decisions, _ = NATS.learn(NATS.start(), normal(2000, 5, 3))
    assert decisions.threshold[:16].unique().numel() == 16
    assert decisions.warming.tolist() == [True] * 128 + [False] * 1872
    moved = 1 + (decisions.threshold.diff() != 0).nonzero().squeeze(1)
    assert moved.diff().max() == NATS.every
    assert all(step <= max(1, n / 8) for n, step in zip(moved[:-1].tolist(), moved.diff().tolist(), strict=True))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_in_nats_p_known_is_calibrated_and_rises_with_the_margin(share):
    margin, is_known = mixed(6000, share=share)
    decisions, state = NATS.learn(NATS.start(), margin)
    p_known, is_known = decisions.p_known[500:], is_known[500:]
    bins = (10 * p_known).long().clamp(max=9)
    gaps = [(p_known[bins == b] - is_known[bins == b].double()).sum().abs() for b in range(10)]
    assert float(sum(gaps) / len(p_known)) < 0.05  # the expected calibration error
    assert bool((NATS.p_known(state, torch.linspace(-45, 45, 1000).double()).diff() >= 0).all())


@pytest.mark.parametrize("order", ["known first", "unknown first", "mixed"])
@pytest.mark.parametrize("unknown", [-6.0, -3.0])
def test_in_nats_the_wanted_share_is_kept_in_every_order(unknown, order):
    known, unknown_margins = normal(1000, 5, 2.4), normal(1000, unknown, 2, seed=1)
    margin = torch.cat([unknown_margins, known] if order == "unknown first" else [known, unknown_margins])
    if order == "mixed":
        margin = margin[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    _, state = NATS.learn(NATS.start(), margin)
    assert 0.9 <= float((known >= NATS.threshold_of(state)).double().mean()) <= 0.99


def test_margins_that_were_judged_again_take_the_place_of_those_that_were_counted():
    margin, _ = mixed(700)
    _, before = NATS.learn(NATS.start(), margin[:301])
    _, after = NATS.learn(before, margin[301:])
    again = NATS.judged_again(after, before, margin[301:] + 1)
    _, expected = NATS.learn(NATS.start(), torch.cat([margin[:301], margin[301:] + 1]))
    assert float(again.counts.sum()) == pytest.approx(700)
    assert int(again.waiting) == 0
    expected = NATS.judged_again(expected, expected, margin[:0])  # counts what waits
    torch.testing.assert_close(again.counts, expected.counts)
    _, later = NATS.learn(again, margin)
    assert float(later.counts.sum()) + int(later.waiting) == pytest.approx(1400)


def test_what_is_judged_together_is_judged_by_the_share_of_known_images_among_all_of_it():
    margin, is_known = mixed(2000)
    known_first = margin[is_known.int().argsort(descending=True, stable=True)]
    start = NATS.start()
    shuffled, sorted_ = (NATS.judged_again(NATS.learn(start, one)[1], start, one) for one in (margin, known_first))
    torch.testing.assert_close(shuffled.fit.p_known, sorted_.fit.p_known)
    assert float(sorted_.recent.sum()) == pytest.approx(512)  # images that come later soon count more than these


@pytest.mark.parametrize("recall", [0.9, 0.95])
def test_where_units_are_unknown_nearly_the_wanted_share_of_a_clear_upper_mode_is_kept_at_least(recall):
    margin, is_id = two_modes(4000, gap=4)
    rule = Adaptive(recall)
    decisions, _ = rule.learn(rule.start(), margin)
    late = torch.arange(4000) >= 1000
    passes = margin >= decisions.threshold
    assert float(passes[late & is_id].double().mean()) >= recall - 0.06
    assert float(passes[late & ~is_id].double().mean()) < 0.12


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("shift", [-100.0, 0.0])
def test_where_units_are_unknown_moved_and_scaled_margins_give_the_same_decisions(shift, scale):
    margin, rule = two_modes(1000)[0].double(), Adaptive()
    one, two = (rule.learn(rule.start(), m)[0] for m in (margin, shift + scale * margin))
    torch.testing.assert_close(two.threshold[128:], shift + scale * one.threshold[128:], rtol=1e-4, atol=1e-4 * scale)
    torch.testing.assert_close(two.p_known[128:], one.p_known[128:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("in_nats", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decisions_have_the_dtype_of_margins_and_p_known_is_a_probability(dtype, in_nats):
    rule = Adaptive(in_nats=in_nats)
    margin = torch.cat([two_modes(300)[0], torch.tensor([1e6, -1e6])]).to(dtype)
    decisions, state = rule.learn(rule.start(), margin)
    assert decisions.threshold.dtype == decisions.p_known.dtype == dtype
    assert bool(((decisions.p_known >= 0) & (decisions.p_known <= 1)).all())
    assert len(rule.learn(state, margin[:0])[0].threshold) == 0


def test_a_state_is_of_one_size_however_long_the_stream():
    for rule in (Adaptive(window=128), NATS):
        states = [rule.learn(rule.start(), two_modes(count)[0])[1] for count in (0, 1000)]
        assert [part.shape for part in states[0].told] == [part.shape for part in states[1].told]
        assert states[0].pending.shape == states[1].pending.shape
        assert int(states[1].seen) == 1000


def test_a_session_takes_the_units_from_the_detector_and_what_to_expect_from_the_names(labels):
    expecting = replace(NATS, known_mean=expected_known_mean(labels))
    found = Session(PooledEvidence(labels)).rule
    assert isinstance(found, Adaptive)
    assert found.known_mean == expecting.known_mean != NATS.known_mean
    assert found == NATS  # rules are compared by what was chosen, not by what follows from the names
    calibrated = Calibrated(0.9, 50).for_detector(labels, in_nats=True)
    assert calibrated.inner.known_mean == expecting.known_mean
    assert Session(NegLabel(labels)).rule == Adaptive(in_nats=False)
    assert Session(PooledEvidence(labels), Fixed(1.0)).rule == Fixed(1.0)
    assert expecting.settings == NATS.settings  # a checkpoint need not agree on what follows from the names
    empty = torch.zeros(GRID.size, dtype=torch.float64)
    fit = fit_mixture(empty, empty, Told.none(), 0.95, known_mean=expecting.known_mean)
    assert expecting.threshold_of(expecting.start()) == float(fit.threshold)


@pytest.mark.data
@pytest.mark.parametrize("order", ["shuffled", "id_first", "ood_first"])
@pytest.mark.parametrize("unknown", ["textures10", "flowers102"])
def test_real_streams_never_keep_far_less_of_the_known_images_than_wanted(features, unknown, order):
    suite = suites.load("imagenet200", features)
    trial = suite.against(unknown).ordered(order, 0)
    verdicts = Session(PooledEvidence(suite.labels)).observe(trial.z)
    assert float((~verdicts.unknown[trial.is_id]).double().mean()) >= 0.88


def test_thresholds_are_the_same_bits_with_one_thread_and_with_two():
    """Workers of a cluster have other numbers of threads than one machine."""
    threads = pytest.importorskip("threadpoolctl")
    margin, _ = mixed(600)
    found = []
    for count in (1, 2):
        with threads.threadpool_limits(count):
            decisions, _ = NATS.learn(NATS.start(), margin)
        found.append(decisions)
    assert all(map(torch.equal, *found))
