"""What methods that move prototypes share: the settings of the update (Eq. 7, 8, 11), and whole streams on a GPU."""

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

from unseen.detectors.base import Detector, above_zero, setting
from unseen.scan import is_on_gpu

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class PrototypeLearner(Detector[S]):
    """A method that learns banks of prototypes by the scan."""

    tau: float = above_zero(0.01)  # temperature of the scores and of the frozen text
    kappa: float = above_zero(0.05)  # temperature of the update
    rho: float = setting(0.1, 0, 100)  # first step

    merges: ClassVar[bool] = True

    def block_for(self, z: Tensor) -> int:
        """The whole stream on a GPU: nothing of the size of samples times names is ever stored there."""
        return max(1, len(z)) if is_on_gpu(z) else super().block_for(z)
