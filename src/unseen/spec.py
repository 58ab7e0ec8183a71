"""The description that a session is built from: what commands, keyed streams, the service and Ray workers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen import checkpoint, detectors, threshold
from unseen.labels import LabelSpace
from unseen.reservoir import UNKNOWN
from unseen.session import Session


@dataclass(frozen=True)
class SessionSpec:
    """The description of a session: labels, a detector and a threshold rule by name, their settings.

    >>> from unseen import demo
    >>> spec = SessionSpec(demo.load().space, "mcm", threshold="fixed", threshold_settings={"threshold": 0.5})
    >>> spec.build().threshold
    0.5
    """

    labels: LabelSpace
    detector: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    threshold: str = "adaptive"
    threshold_settings: Mapping[str, Any] = field(default_factory=dict)
    keep: int = UNKNOWN  # unknown images that are kept

    def build(self) -> Session:
        """A session before its first sample."""
        detector = detectors.make(self.detector, self.labels, **self.settings)
        return Session(detector, threshold.make(self.threshold, **self.threshold_settings), keep=self.keep)

    def resume(self, source: str | Path | bytes) -> Session:
        """A session that goes on from a saved state; refuse a state that another description made."""
        return self.build().resumed(checkpoint.load(source))
