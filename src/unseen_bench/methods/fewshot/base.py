"""What methods that learn from examples share: the examples of their label space, a score by MCM, and a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from unseen.detectors.base import DetectorOutput, Frozen
from unseen.errors import LabelError
from unseen.labels import Examples
from unseen.odds import top

TAU = 0.01  # CLIP's temperature: logits are 100 times cosines


@dataclass(frozen=True, eq=False)
class FewShot(Frozen):
    """A method that is fitted to the examples of its label space before the first sample, and never learns again.

    Subclasses write `rows`, the vectors of names, or `logits`; the score is MCM's at T = 1 on logits / 100, as the
    published rows of prompt learners.
    """

    seed: int = 0

    reduced: ClassVar[str] = ""  # what of its paper it leaves out

    @property
    def examples(self) -> Examples:
        """The examples."""
        if self.labels.examples is None:
            raise LabelError(
                f"expected a label space with examples for {self.name!r}, got none; "
                "use dataclasses.replace(space, examples=Examples(z, label))"
            )
        return self.labels.examples

    @property
    def images(self) -> Float[Tensor, "n d"]:
        """The features of the examples in the type of the anchors."""
        return self.examples.z.to(self.labels.id_anchors)

    @property
    def rows(self) -> Float[Tensor, "K d"]:
        """The vectors of the known names after fitting."""
        raise NotImplementedError

    def logits(self, z: Float[Tensor, "T d"]) -> Float[Tensor, "T K"]:
        """The logits of the known names."""
        return z @ self.rows.T / TAU

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block by how far the best name stands out."""
        best = top(TAU * self.logits(z))
        return DetectorOutput.frozen(best.log_odds, best.label)


class Schedule(NamedTuple):
    """How long and how fast to train."""

    optimiser: str  # of OPTIMISERS
    rate: float
    epochs: int
    batch: int
    warm_up: float | None = None  # rate of the first epoch
    by_batch: bool = False  # whether the rate falls with every batch, not with every epoch

    def rate_at(self, epoch: int, share: float) -> float:
        """The rate in an epoch of which `share` is done: down a cosine."""
        if epoch == 0 and self.warm_up is not None:
            return self.warm_up
        done = epoch + share if self.by_batch else epoch
        return self.rate * (1 + math.cos(math.pi * done / self.epochs)) / 2


OPTIMISERS: dict[str, Callable[[Sequence[Tensor], float], Optimizer]] = {
    "adam": lambda rows, rate: Adam(rows, lr=rate),
    "adamw": lambda rows, rate: AdamW(rows, lr=rate, eps=1e-4),
    "sgd": lambda rows, rate: SGD(rows, lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True),
}


def train(
    start: Sequence[Tensor],
    loss: Callable[[Sequence[Tensor], Int[Tensor, " b"], int], Tensor],
    count: int,
    schedule: Schedule,
    *,
    seed: int,
) -> list[Tensor]:
    """Parameters after minimising `loss(parameters, rows of a batch, epoch)`, the rate falling by a cosine.

    An epoch has as few batches as its size allows, all of the same size but for one example: a step on the few that are
    left over would count as much as one on a whole batch.
    """
    parameters = [one.detach().clone().requires_grad_() for one in start]
    optimiser = OPTIMISERS[schedule.optimiser](parameters, schedule.rate)
    generator = torch.Generator().manual_seed(seed)
    batches = math.ceil(count / schedule.batch)
    for epoch in range(schedule.epochs):
        for number, rows in enumerate(torch.randperm(count, generator=generator).tensor_split(batches)):
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate_at(epoch, number / batches)
            optimiser.zero_grad()
            loss(parameters, rows.to(parameters[0].device), epoch).backward()
            optimiser.step()
    return [one.detach() for one in parameters]
