"""Which session a command works with: a new one, or the one its state file was learned by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unseen import LabelSpace, Session, detectors, threshold
from unseen.errors import SettingError

DETECTOR = detectors.DEFAULT


def rule(recall: float | None, cut: float | None) -> threshold.ThresholdRule[Any] | None:
    """Return the threshold that was asked for, or None where none was."""
    if recall is not None and cut is not None:
        raise SettingError("expected --recall or --cut, got both; a fixed line aims at no recall")
    if cut is not None:
        return threshold.Fixed(cut)
    return None if recall is None else threshold.Adaptive(recall)


def usable(detector: str | None) -> None:
    """Refuse a detector that no command can run, before anything slow has begun."""
    if detectors.find(detector or DETECTOR).needs_patches:
        raise SettingError(f"expected a detector that reads whole images, got {detector!r}; try {DETECTOR}")


def session(
    space: LabelSpace, detector: str | None, asked: threshold.ThresholdRule[Any] | None, state: Path | None
) -> Session:
    """Return a new session, or the one a state file was learned by; refuse options it was not learned with."""
    if state is None or not state.exists():
        return Session(detectors.make(detector or DETECTOR, space), asked)
    found = Session.load(state, space)
    wanted = asked and asked.for_detector(derives_baseline=found.detector.derives_baseline)
    for option, given, kept in (
        ("--detector", detector and detectors.find(detector).name, found.detector.name),
        ("--recall and --cut", wanted, found.rule),
    ):
        if given not in (None, kept):
            raise SettingError(f"expected {option} as {state} was learned with, {kept}, got {given}; leave it out")
    return found
