"""Alarms along a run."""

from __future__ import annotations

import torch

from unseen.alarm import UnknownRateAlarm
from unseen.cli.run import REFERENCE, Alarms
from unseen.detectors import DetectorOutput
from unseen.threshold import Decisions
from unseen.verdicts import Verdicts


def verdicts(label: torch.Tensor, *, warming: bool = False) -> Verdicts:
    ones = torch.ones(len(label))
    decisions = Decisions(0 * ones, 0.9 * ones, torch.full((len(label),), warming))
    return Verdicts(("cat", "dog"), DetectorOutput.frozen(ones, label), decisions)


def test_another_mix_of_names_is_told_once():
    alarms = Alarms(UnknownRateAlarm(0.2))
    usual = torch.arange(REFERENCE) % 4 // 3  # three cats to a dog
    assert list(alarms.add(verdicts(usual))) == []
    assert list(alarms.add(verdicts(usual))) == []
    told = list(alarms.add(verdicts(torch.ones(200, dtype=torch.int64))))
    assert told == ["the mix of names is not that of the first 512 images"]
    assert list(alarms.add(verdicts(torch.ones(200, dtype=torch.int64)))) == []
    assert alarms.shown()["mix_raised"]


def test_verdicts_of_a_young_threshold_do_not_count():
    alarms = Alarms(UnknownRateAlarm(0.2))
    assert list(alarms.add(verdicts(torch.zeros(900, dtype=torch.int64), warming=True))) == []
    assert alarms.state.seen == 0
