"""GL-MCM (IJCV 2025): MCM of the whole image plus MCM of its best patch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, FrozenSoftmax, setting
from unseen.errors import FeatureError


@dataclass(frozen=True, eq=False)
class GLMCM(FrozenSoftmax):
    """Score by the largest probability of a known name, plus `lam` times the largest that any patch gives one.

    `z` is [T, 1 + P, d]: the image's vector, then one per patch.
    """

    lam: float = setting(0.5, 0, 100)  # the authors' ImageNet script; 1 elsewhere

    name: ClassVar[str] = "gl-mcm"
    needs_names: ClassVar[int] = 2
    parts: ClassVar[str] = "patches"
    # 196 patches x 1000 names x 512 samples would be six times as many
    logits_at_once: ClassVar[int] = 2**24

    def read(self, state: None, z: Float[Tensor, "T P1 d"]) -> DetectorOutput:
        patches = z.shape[1] - 1
        if patches < 1:
            raise FeatureError(
                "expected at least one patch per image for 'gl-mcm', got none; encode with patch features, or use 'mcm'"
            )
        whole, label = self._probability(z[:, 0])
        samples = max(1, self.logits_at_once // (patches * len(self.labels.names)))
        local = torch.cat([self._probability(part[:, 1:])[0].amax(dim=1) for part in z.split(samples)])
        return DetectorOutput.frozen(whole + self.lam * local, label)

    def _probability(self, z: Tensor) -> tuple[Tensor, Tensor]:
        logits = z @ self.labels.id_anchors.T / self.tau
        peak, label = logits.max(dim=-1)
        return (peak - torch.logsumexp(logits, dim=-1)).exp(), label
