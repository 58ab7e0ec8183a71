"""Energy (NeurIPS 2020) on zero-shot logits: the log of the known names' unnormalised mass."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, FrozenSoftmax
from unseen.odds import energy


@dataclass(frozen=True, eq=False)
class Energy(FrozenSoftmax):
    """Score by `tau * logsumexp(cosines / tau)`; at the published tau = 1 nearly the mean cosine."""

    name: ClassVar[str] = "energy"

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        cosine = z @ self.labels.id_anchors.T
        return DetectorOutput.frozen(self.tau * energy(cosine / self.tau), cosine.argmax(dim=1))
