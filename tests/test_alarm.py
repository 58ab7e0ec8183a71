"""The alarm on the unknown rate: its evidence is the recurrence, and its false alarms are as rare as it states."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.alarm import AlarmState, UnknownRateAlarm, allowed_rate
from unseen.errors import SettingError


def literal(rule: UnknownRateAlarm, unknown: list[bool]) -> AlarmState:
    """Follow the recurrence one sample at a time."""
    evidence, raised = [0.0] * len(rule.rates), None
    for number, one in enumerate(unknown):
        if raised is not None:
            break
        for place, rate in enumerate(rule.rates):
            ratio = rate / rule.allowed if one else (1 - rate) / (1 - rule.allowed)
            evidence[place] = (evidence[place] + 1) * ratio
        raised = number if sum(evidence) / len(evidence) >= rule.between else None
    return AlarmState(len(unknown), tuple(evidence), raised)


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 300), st.sampled_from([0.05, 0.3, 0.9]))
def test_any_blocking_follows_the_recurrence(unknown, cut, allowed):
    rule = UnknownRateAlarm(allowed, between=1e6)
    state = rule.start()
    for part in (unknown[:cut], unknown[cut:]):
        state = rule.update(state, np.array(part, bool))
    expected = literal(rule, unknown)
    assert (state.seen, state.raised_at) == (expected.seen, expected.raised_at)
    if state.raised_at is None:
        assert state.evidence == pytest.approx(expected.evidence, rel=1e-9)
        assert 0 <= rule.share(state) < 1


def test_false_alarms_are_as_rare_as_stated():
    rule, generator = UnknownRateAlarm(0.3, between=500), np.random.default_rng(0)
    times = []
    for _ in range(200):
        state = rule.start()
        while state.raised_at is None:
            state = rule.update(state, generator.random(256) < 0.3)
        times.append(state.raised_at)
    assert np.mean(times) - 3 * np.std(times) / math.sqrt(len(times)) > 500


def test_a_risen_rate_is_noticed_soon_and_a_fallen_one_is_not_an_alarm():
    rule, generator = UnknownRateAlarm(0.2, between=100_000), np.random.default_rng(1)
    calm = rule.update(rule.start(), generator.random(5_000) < 0.1)
    assert calm.raised_at is None
    risen = rule.update(calm, generator.random(1_000) < 0.6)
    assert risen.raised_at is not None
    assert 5_000 < risen.raised_at < 5_100
    assert rule.share(risen) == 1
    assert rule.update(risen, np.zeros(10_000, bool)).raised_at == risen.raised_at  # until it is started again


def test_a_rate_that_was_observed_gets_an_upper_bound():
    assert allowed_rate(100, 1000) == pytest.approx(0.1 + math.sqrt(math.log(1000) / 2000))
    assert allowed_rate(5, 5) == 0.99


@pytest.mark.parametrize(
    "make", [lambda: UnknownRateAlarm(0), lambda: UnknownRateAlarm(0.5, 1), lambda: allowed_rate(2, 1)]
)
def test_odd_settings_are_refused(make):
    with pytest.raises(SettingError, match="expected"):
        make()
