"""The score of LSN, which compares an image with what each name is and is not."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput, Frozen
from unseen.errors import LabelError
from unseen_bench.methods.prompts.methods import LSN

DISTANCE_SCALE = 5.0  # temperature of the negative side


@dataclass(frozen=True, eq=False)
class LSNScore(Frozen):
    """Score by max softmax(cosine) + the mean over negative prompts of max softmax((1 - cosine) / 5).

    Its label space is one that `unseen bench learn --method lsn` wrote: three negatives per name, set after set.
    """

    name: ClassVar[str] = "lsn"
    needs_names: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse a label space that LSN did not make."""
        super().__post_init__()
        if list(self.labels.negatives) != LSN().negatives(self.labels.names):
            raise LabelError(
                "expected the label space of `unseen bench learn --method lsn`, got another; learn one first"
            )

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block."""
        cosine = z @ self.labels.id_anchors.T
        negative = (z @ self.labels.ood_anchors.T).unflatten(1, (LSN.per_name, -1))
        absent = ((1 - negative) / DISTANCE_SCALE).softmax(2).amax(2).mean(1)
        return DetectorOutput.frozen(cosine.softmax(1).amax(1) + absent, cosine.argmax(1))
