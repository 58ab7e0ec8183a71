"""Turn margins into verdicts: fixed, by the stream and what a person tells (adaptive), or with a guarantee."""

from __future__ import annotations

from typing import Any

from unseen.errors import SettingError, check_choice
from unseen.threshold.adaptive import Adaptive
from unseen.threshold.base import Decisions, RecallInterval, ThresholdRule
from unseen.threshold.calibrated import Calibrated, Calibration, calibrated, calibration
from unseen.threshold.fixed import Fixed

REGISTRY: dict[str, type[ThresholdRule[Any]]] = {kind.name: kind for kind in (Fixed, Adaptive, Calibrated)}


def make(name: str, **settings: Any) -> ThresholdRule[Any]:
    """The rule registered as `name`."""
    check_choice("a threshold", name, sorted(REGISTRY))
    try:
        return REGISTRY[name](**settings)
    except TypeError as error:
        raise SettingError(f"expected settings of {name!r}, got {sorted(settings)} ({error}); see its class") from error
