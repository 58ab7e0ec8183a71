"""What the methods that never learn share: they have no state."""

from dataclasses import dataclass
from typing import ClassVar

from unseen.detectors.base import Detector, above_zero


@dataclass(frozen=True, eq=False)
class Frozen(Detector[None]):
    """A method whose score depends on the frozen text only."""

    merges: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def start(self) -> None:
        return


@dataclass(frozen=True, eq=False)
class FrozenSoftmax(Frozen):
    """A method whose score depends on a softmax over names at the temperature `tau`."""

    tau: float = above_zero(1.0)  # on raw cosines, as published
