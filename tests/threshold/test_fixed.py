from __future__ import annotations

import pytest
import torch

from unseen import threshold
from unseen.errors import SettingError
from unseen.threshold import Fixed, calibrated


def test_a_fixed_threshold_does_not_move():
    decisions, state = Fixed(1.5).learn(None, torch.zeros(3))
    assert decisions.threshold.tolist() == [1.5] * 3
    assert not decisions.warming.any()
    assert state is None


def test_calibration_reaches_the_recall_on_average_at_small_n():
    # over many draws of 39 known margins a new known image passes with probability at least 0.95: exactly 38/40
    generator = torch.Generator().manual_seed(0)
    passed = []
    for _ in range(4000):
        margins = torch.rand(40, generator=generator)
        passed.append(float(margins[0]) >= calibrated(margins[1:], recall=0.95).threshold)
    assert sum(passed) / len(passed) == pytest.approx(0.95, abs=0.012)


def test_calibration_takes_the_conformal_rank():
    assert calibrated(torch.arange(1.0, 20.0), recall=0.95).threshold == 1.0
    assert calibrated(torch.arange(1.0, 100.0), recall=0.9).threshold == 10.0


def test_calibration_says_how_many_margins_it_needs():
    with pytest.raises(SettingError, match=r"expected at least 19 known images for a recall of 0\.95, got 18"):
        calibrated(torch.arange(18.0), recall=0.95)


def test_an_unknown_rule_or_setting_is_refused():
    with pytest.raises(
        SettingError, match="expected a threshold out of adaptive, calibrated, examples, fixed, got 'sharp'"
    ):
        threshold.make("sharp")
    with pytest.raises(SettingError, match=r"expected settings of 'fixed', got \['cut'\]"):
        threshold.make("fixed", cut=1.0)
