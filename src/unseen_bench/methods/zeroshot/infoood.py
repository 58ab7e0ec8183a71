"""InfoOOD (NeurIPS 2025), reconstructed: how much information an image and random views of it give about a name.

There is no public code of the paper. The formula comes from code in a later repository by the same first author and
was not confirmed against the paper; hence the name.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from unseen.detectors.base import DetectorOutput, Frozen, above_zero, in_range, setting
from unseen.detectors.neglabel import PUBLISHED_GROUPS, random_groups
from unseen.errors import FeatureError


@dataclass(frozen=True, eq=False)
class InfoOOD(Frozen):
    """Score by PMI(view; name) + PMI(image; name | view), mean over views, log-sum-exp over the known names.

    `z` is [T, 1 + V, d]: the image's vector, then one per random view.
    """

    tau_view: float = above_zero(0.01)
    tau_image: float = above_zero(0.02)
    tau_prior: float = above_zero(50.0)  # of the weights of all texts by the view: nearly even
    step: float = setting(0.25, 0, 10)  # how far the image is moved away from the view
    smooth: float = above_zero(1.0)
    groups: int = PUBLISHED_GROUPS
    seed: int = 0

    name: ClassVar[str] = "infoood-reconstructed"
    needs_negatives: ClassVar[bool] = True
    parts: ClassVar[str] = "views"
    logits_at_once: ClassVar[int] = 2**22

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("groups", self.groups, 1, max(PUBLISHED_GROUPS, len(self.labels.negatives)))

    def read(self, state: None, z: Float[Tensor, "T V1 d"]) -> DetectorOutput:
        views = z.shape[1] - 1
        if views < 1:
            raise FeatureError(f"expected at least one view per image for {self.name!r}, got none; encode random crops")
        names = len(self.labels.names) + len(self.labels.negatives)
        size = max(1, self.logits_at_once // (views * names))
        information = torch.cat([self._information(part[:, :1], part[:, 1:]).mean(dim=1) for part in z.split(size)])
        score = self.smooth * torch.logsumexp(information / self.smooth, dim=1)
        return DetectorOutput.frozen(score, information.argmax(dim=1))

    @cached_property
    def members(self) -> Int[Tensor, "G n"]:
        """Which negatives are in which group; a remainder that fills no group is dropped."""
        return random_groups(self.labels, self.groups, self.seed)

    def _information(self, image: Float[Tensor, "n 1 d"], view: Float[Tensor, "n V d"]) -> Float[Tensor, "n V K"]:
        """Log s1 + log s2 of every view and known name."""
        known, anchors = len(self.labels.names), torch.cat([self.labels.id_anchors, self.labels.ood_anchors])
        by_view = view @ anchors.T
        ahead = normalize(image + self.step * (image - view), dim=-1) @ anchors.T / self.tau_image
        prior = (by_view / self.tau_prior).log_softmax(dim=-1)
        conditional = ahead[..., :known] - torch.logsumexp(prior + ahead, dim=-1, keepdim=True)
        return self._of_view(*by_view.div(self.tau_view).split([known, len(anchors) - known], dim=-1)) + conditional

    def _of_view(self, known: Float[Tensor, "n V K"], negative: Float[Tensor, "n V L"]) -> Float[Tensor, "n V K"]:
        """The log of each known name's mean probability over the groups of negatives."""
        rivals = negative[..., self.members].logsumexp(dim=-1)
        total = torch.logaddexp(known.logsumexp(dim=-1, keepdim=True), rivals)
        return known + torch.logsumexp(-total, dim=-1, keepdim=True) - math.log(len(self.members))
