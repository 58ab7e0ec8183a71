"""Scores read off the head's logits: MSP, energy, ODIN, GradNorm, GEN."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import above_zero, setting
from unseen.odds import energy, top
from unseen_bench.methods.posthoc.base import PostHoc


@dataclass(frozen=True, eq=False)
class MSP(PostHoc):
    """Score by the log-odds of the largest softmax probability (ICLR 2017)."""

    name: ClassVar[str] = "fit-msp"
    needs_names: ClassVar[int] = 2

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return top(self.images.logits(z)).log_odds


@dataclass(frozen=True, eq=False)
class HeadEnergy(PostHoc):
    """Score by the logsumexp of the logits (NeurIPS 2020)."""

    name: ClassVar[str] = "fit-energy"

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return energy(self.images.logits(z))


@dataclass(frozen=True, eq=False)
class ODIN(PostHoc):
    """Score by MSP at a high temperature after a small step of the features towards the best class (ICLR 2018).

    The published step is on pixels; on features it needs no network.
    """

    temperature: float = above_zero(1000.0)
    step: float = setting(0.0014, 0, 1)

    name: ClassVar[str] = "fit-odin"
    needs_names: ClassVar[int] = 2

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        logits = self.images.logits(z) / self.temperature
        # the gradient of log max softmax: the best class's row less the expected row
        gradient = self.images.weight[logits.argmax(dim=1)] - torch.softmax(logits, dim=1) @ self.images.weight
        return top(self.images.logits(z + self.step * gradient.sign()) / self.temperature).log_odds


@dataclass(frozen=True, eq=False)
class GradNorm(PostHoc):
    """Score by the L1 norm of the head's gradient of KL(uniform, softmax) (NeurIPS 2021)."""

    name: ClassVar[str] = "fit-gradnorm"

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """The norm: the gradient is an outer product, so its norm is a product of norms."""
        share = torch.softmax(self.images.logits(z), dim=1)
        return z.abs().sum(dim=1) * (share - 1 / share.shape[1]).abs().sum(dim=1)


@dataclass(frozen=True, eq=False)
class GEN(PostHoc):
    """Score by the generalised entropy of the largest probabilities (CVPR 2023)."""

    gamma: float = setting(0.1, 0, 1, low_open=True)
    largest: int = setting(100, 1, 1_000_000)  # all of them where there are fewer classes

    name: ClassVar[str] = "fit-gen"
    needs_names: ClassVar[int] = 2

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        share = torch.softmax(self.images.logits(z), dim=1)
        best = share.topk(min(self.largest, share.shape[1]), dim=1).values
        return -(best * (1 - best).clamp(min=0)).pow(self.gamma).sum(dim=1)
