"""The framework of Eq. 7-8: learn prototypes of any label set from every sample, with soft targets of your own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.detectors.base import Detector
from unseen.detectors.single_bank import SingleBank
from unseen.errors import FeatureError
from unseen.scan import TargetSource

TargetFunction = Callable[[Float[Tensor, "T d"]], Float[Tensor, "T K"]]


@dataclass(frozen=True, eq=False)
class Framework(SingleBank):
    """Learn from every sample towards soft targets: the frozen text's own prediction, or those of `targets(z)`."""

    targets: TargetFunction | None = None

    name: ClassVar[str] = "framework"

    def teaching(self, z: Float[Tensor, "T d"]) -> tuple[TargetSource, Bool[Tensor, " T"]]:
        """The soft targets; every sample teaches."""
        targets = self._text_targets(z) if self.targets is None else self._own_targets(self.targets(z).to(z), len(z))
        return targets, torch.ones(len(z), dtype=torch.bool, device=z.device)

    def block_for(self, z: Tensor) -> int:
        """The whole stream on a GPU, unless the caller's own targets, [T, K] in size, come with it."""
        return super().block_for(z) if self.targets is None else Detector.block_for(self, z)

    def _own_targets(self, targets: Tensor, samples: int) -> Tensor:
        """The logits of the caller's soft targets; refuse what is no distribution."""
        names = len(self.labels.names)
        if targets.shape != (samples, names) or not bool((targets >= 0).all()):
            raise FeatureError(
                f"expected soft targets of shape [{samples}, {names}] without negative entries, "
                f"got {list(targets.shape)}; return one distribution over the names per sample"
            )
        if not bool(((targets.sum(dim=1) - 1).abs() < 1e-3).all()):
            raise FeatureError("expected soft targets that sum to 1, got other sums; normalise them with softmax")
        return targets.log()
