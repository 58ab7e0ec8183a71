"""The alarm on the unknown rate: its evidence is the recurrence, and its false alarms are as rare as it states."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.alarm import AlarmState, MixAlarm, StreamAlarms, UnknownRateAlarm, allowed_rate
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


def test_false_alarms_of_a_mix_are_as_rare_as_stated_and_a_change_is_noticed():
    mix, generator = (0.5, 0.3, 0.2), np.random.default_rng(0)
    rule, times = MixAlarm(mix, between=200), []
    for _ in range(150):
        state = rule.start()
        while state.raised_at is None:
            state = rule.update(state, generator.choice(3, 256, p=mix))
        times.append(state.raised_at)
    assert np.mean(times) - 3 * np.std(times) / math.sqrt(len(times)) > 200
    calm = MixAlarm.from_outcomes(np.array([500, 300, 200]))
    state = calm.update(calm.start(), generator.choice(3, 3_000, p=mix))
    assert state.raised_at is None
    assert 3_000 < calm.update(state, generator.choice(3, 500, p=mix[::-1])).raised_at < 3_200


def test_a_mix_is_judged_alike_in_one_call_and_in_many():
    rule, outcome = MixAlarm((0.3, 0.3, 0.4), between=1e9), np.random.default_rng(2).choice(3, 300)
    parts = rule.start()
    for part in np.split(outcome, [10, 100, 164]):
        parts = rule.update(parts, part)
    assert parts.evidence == pytest.approx(rule.update(rule.start(), outcome).evidence)


def test_another_mix_of_names_is_told_once() -> None:
    alarms = StreamAlarms(UnknownRateAlarm(0.2))
    usual, others = np.arange(512) % 4 // 3, np.ones(200, dtype=np.int64)  # three cats to a dog
    assert [list(alarms.add(usual, names=2)) for _ in range(2)] == [[], []]
    assert list(alarms.add(others, names=2)) == ["the mix of names is not that of the first 512 images"]
    assert list(alarms.add(others, names=2)) == []
    assert alarms.shown()["mix_raised"]
