"""TaskRes (CVPR 2023): residuals on the rows of the text, by cross-entropy of the examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from unseen.detectors.base import above_zero
from unseen_bench.methods.fewshot.base import TAU, FewShot, Schedule, train

MANY = 8  # examples per name from which on 200 epochs are published, and 100 below


@dataclass(frozen=True, eq=False)
class TaskRes(FewShot):
    """Names are text + alpha x residual; Adam at 0.002, warmed up one epoch at 1e-5, batches of 256."""

    alpha: float = above_zero(0.5)

    name: ClassVar[str] = "taskres"
    needs_names: ClassVar[int] = 2

    @cached_property
    def rows(self) -> Float[Tensor, "K d"]:
        """The rows after training."""
        text, z, label = self.labels.id_anchors, self.images, self.examples.label

        def loss(parameters: Sequence[Tensor], rows: Int[Tensor, " b"], epoch: int) -> Tensor:
            moved = normalize(text + self.alpha * parameters[0], dim=1)
            return cross_entropy(z[rows] @ moved.T / TAU, label[rows])

        epochs = 200 if int(self.examples.counts(len(text)).max()) >= MANY else 100
        schedule = Schedule("adam", 2e-3, epochs, 256, warm_up=1e-5)
        (residual,) = train([torch.zeros_like(text)], loss, len(z), schedule, seed=self.seed)
        return normalize(text + self.alpha * residual, dim=1)
