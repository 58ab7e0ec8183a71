"""Examples beside the text: TaskRes (CVPR 2023), Tip-Adapter (ECCV 2022), and prototypes in the setting of TINS."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from unseen.detectors.base import DetectorOutput, above_zero
from unseen.odds import energy, logits, neglabel, text_logits
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


@dataclass(frozen=True, eq=False)
class TipAdapter(FewShot):
    """Add alpha x sum of exp(-beta (1 - cosine)) over the examples of a name to its text logit.

    Constants are those that the published configuration for ImageNet begins with; the paper's text has 1 and 5.5. The
    release then searches both on labels of the test images, which no method here sees, and averages each key over ten
    random crops, which features do not have.
    """

    alpha: float = above_zero(1.17)
    beta: float = above_zero(1.0)

    name: ClassVar[str] = "tip-adapter"
    needs_names: ClassVar[int] = 2

    @cached_property
    def values(self) -> Float[Tensor, "n K"]:
        """The names of the examples as one-hot rows."""
        return one_hot(self.examples.label, len(self.labels.names)).to(self.labels.id_anchors)

    @property
    def keys(self) -> Float[Tensor, "n d"]:
        """What images are compared with."""
        return self.images

    def with_keys(self, keys: Float[Tensor, "n d"], z: Float[Tensor, "T d"]) -> Float[Tensor, "T K"]:
        """The logits of `z` with the cache at `keys`."""
        affinity = (-self.beta * (1 - z @ keys.T)).exp()
        return z @ self.labels.id_anchors.T / TAU + self.alpha * affinity @ self.values

    def logits(self, z: Float[Tensor, "T d"]) -> Float[Tensor, "T K"]:
        return self.with_keys(self.keys, z)


@dataclass(frozen=True, eq=False)
class TipAdapterTuned(TipAdapter):
    """Tip-Adapter-F: the keys are trained, AdamW at 0.001, 20 epochs, batches of 256, the rate falling by batch."""

    name: ClassVar[str] = "tip-adapter-f"

    @cached_property
    def keys(self) -> Float[Tensor, "n d"]:
        """The keys after training."""
        z, label = self.images, self.examples.label

        def loss(parameters: Sequence[Tensor], rows: Int[Tensor, " b"], epoch: int) -> Tensor:
            return cross_entropy(self.with_keys(parameters[0], z[rows]), label[rows])

        return train([z], loss, len(z), Schedule("adamw", 1e-3, 20, 256, by_batch=True), seed=self.seed)[0]


@dataclass(frozen=True, eq=False)
class FewShotPrototypes(FewShot):
    """Add log-odds of image prototypes to NegLabel's: means of examples against negatives moved across the gap.

    The setting of TINS (names, negatives, a few images of each name), not TINS itself, whose code is not published. A
    negative, and a name without examples, lies at its text moved by mean image - mean text.
    """

    tau: float = above_zero(TAU)
    kappa: float = above_zero(0.05)  # temperature in image space

    name: ClassVar[str] = "few-shot-prototypes"
    needs_negatives: ClassVar[bool] = True

    @cached_property
    def prototypes(self) -> tuple[Float[Tensor, "K d"], Float[Tensor, "L d"]]:
        """The prototypes of the names and of the negatives."""
        text, label = self.labels.id_anchors, self.examples.label
        gap = self.images.mean(0) - text[label].mean(0)
        total = torch.zeros_like(text).index_add(0, label, self.images)
        has_some = (self.examples.counts(len(text)) > 0).unsqueeze(1)
        known = normalize(torch.where(has_some, total, text + gap), dim=1)
        return known, normalize(self.labels.ood_anchors + gap, dim=1)

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        text = text_logits(self.labels, z, tau=self.tau)
        known, negative = (logits(z, rows, tau=self.kappa) for rows in self.prototypes)
        return DetectorOutput.frozen(neglabel(text) + energy(known) - energy(negative), (text.known + known).argmax(1))
