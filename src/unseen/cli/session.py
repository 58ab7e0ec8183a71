"""The session that a command line asks for: a new one, or the one that a state file was saved by."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen import LabelSpace, Session, detectors
from unseen.errors import SettingError
from unseen.session import SessionSpec
from unseen.threshold import Adaptive, Calibrated, Fixed, ThresholdRule


@dataclass(frozen=True)
class SessionOptions:
    """The options of a session; None where the command line leaves one out."""

    detector: str | None
    recall: float | None
    threshold: float | None
    calibrate: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no command can run, before anything slow has begun."""
        if self.recall is not None and self.threshold is not None:
            raise SettingError("expected --recall or --threshold, got both; a fixed threshold aims at no recall")
        if self.calibrate is not None and self.threshold is not None:
            raise SettingError("expected --calibrate or --threshold, got both; known images set the threshold")
        if self.detector and ":" in self.detector:
            object.__setattr__(self, "detector", _register_own(self.detector))
        if self.kind.parts:
            raise SettingError(f"expected a detector that reads whole images, got {self.detector!r}; leave it out")
        _ = self.rule

    @property
    def kind(self) -> type[detectors.Detector[Any]]:
        """The class of the detector."""
        return detectors.find(self.detector or detectors.DEFAULT)

    @property
    def rule(self) -> ThresholdRule[Any] | None:
        """The threshold rule of the options, None where they have none."""
        if self.threshold is not None:
            return Fixed(self.threshold)
        return None if self.recall is None else Adaptive(self.recall)

    def spec(self, labels: LabelSpace) -> SessionSpec:
        """The description of a new session."""
        rule = self.rule or Adaptive()
        return SessionSpec(
            labels, self.detector or detectors.DEFAULT, threshold=rule.name, threshold_settings=rule.settings
        )

    def session(self, labels: LabelSpace, state: Path | None) -> Session:
        """A new session, or the one that `state` was saved by; refuse options that it was not learned with."""
        if state is None or not state.exists():
            return self.spec(labels).build()
        saved = Session.load(state, labels)
        detector = self.detector and detectors.find(self.detector).name
        rule = self.rule and self.rule.for_detector(derives_baseline=saved.detector.derives_baseline)
        for option, given, kept in (
            ("--detector", detector, saved.detector.name),
            ("--recall and --threshold", rule, saved.rule),
        ):
            if given not in (None, kept) and not self._fits_calibrated_rule(kept):
                raise SettingError(f"expected {option} as {state} was learned with, {kept}, got {given}; leave it out")
        return saved

    def _fits_calibrated_rule(self, kept: object) -> bool:
        """Whether the options fit a calibrated rule: its own recall, or any with images to calibrate again."""
        return isinstance(kept, Calibrated) and (self.calibrate is not None or self.recall == kept.recall)


def _register_own(name: str) -> str:
    """Register the class that `module:Class` names, found from the working folder too; return the detector's name."""
    module, _, cls = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; an installed command does not
    try:
        kind = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"expected --detector module:Class, got {name!r} ({error}); "
            "run it in the folder of the module, or install the module"
        ) from error
    return detectors.register(kind)
