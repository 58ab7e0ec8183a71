"""A threshold that never moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.threshold.base import ThresholdRule


@dataclass(frozen=True)
class Fixed(ThresholdRule[None]):
    """Call a sample known from one margin on; 0 is the baseline.

    >>> from unseen import Session, demo
    >>> Session(demo.load().space, Fixed(2.5)).threshold
    2.5
    """

    threshold: float = 0.0

    name: ClassVar[str] = "fixed"

    def start(self) -> None:
        """No state."""
        return

    def threshold_of(self, state: None) -> float:
        """The margin that was fixed."""
        return self.threshold
