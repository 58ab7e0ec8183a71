"""What the methods that never learn share: no state, and a score that is all there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.detectors.base import Detector


@dataclass(frozen=True, eq=False)
class Frozen(Detector[None]):
    """A method whose score depends on the frozen text alone."""

    merges: ClassVar[bool] = True

    def start(self) -> None:
        """Return no state: there is nothing to learn."""
        return
