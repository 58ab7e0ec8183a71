"""NegLabel (ICLR 2024): the known names' share of the softmax over known and negative names."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from unseen.detectors.base import DetectorOutput, FrozenSoftmax, above_zero, in_range
from unseen.labels import LabelSpace
from unseen.odds import energy, logits

PUBLISHED_GROUPS = 100


@dataclass(frozen=True, eq=False)
class NegLabel(FrozenSoftmax):
    """Score by the log-odds of the known names' mean share over random groups of negatives (Eq. 3 in each)."""

    tau: float = above_zero(0.01)
    groups: int = PUBLISHED_GROUPS  # one per negative where there are fewer; 1 is Eq. 3 as the online paper has it
    seed: int = 0

    name: ClassVar[str] = "neglabel"
    needs_negatives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("groups", self.groups, 1, max(PUBLISHED_GROUPS, len(self.labels.negatives)))

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        known = logits(z, self.labels.id_anchors, tau=self.tau)
        negative = logits(z, self.labels.ood_anchors, tau=self.tau)
        score = grouped_log_odds(energy(known), negative, self.members)
        return DetectorOutput.frozen(score, known.argmax(dim=1), negative=negative.argmax(dim=1))

    @cached_property
    def members(self) -> Int[Tensor, "G n"]:
        """Which negatives are in which group; a remainder that fills no group is dropped, as published."""
        return random_groups(self.labels, self.groups, self.seed)


def random_groups(labels: LabelSpace, groups: int, seed: int) -> Int[Tensor, "G n"]:
    """Equal groups of a seeded permutation of the negatives, one each where there are fewer than `groups`.

    One group keeps the order.
    """
    count, device = len(labels.negatives), labels.ood_anchors.device
    groups = min(groups, count)
    if groups == 1:
        return torch.arange(count, device=device).unsqueeze(0)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count - count % groups].view(groups, -1).to(device)


def grouped_log_odds(
    known: Float[Tensor, " T"], negative: Float[Tensor, "T L"], members: Int[Tensor, "G n"]
) -> Float[Tensor, " T"]:
    """The log-odds of the known names' mean share over groups: exact where the mean itself rounds to 1."""
    if len(members) == 1:
        return known - energy(negative)
    parts = negative.index_select(1, members.flatten()).view(-1, *members.shape)  # twice as fast as [:, members]
    odds = known.unsqueeze(1) - torch.logsumexp(parts, dim=-1)
    return energy(logsigmoid(odds)) - energy(logsigmoid(-odds))
