"""Prompt learners: which contexts each has, the loss it minimises, and the label space that comes of it.

Schedules are the published ones. What differs here: examples are encoded once, without random crops and flips, so that
an epoch costs passes through the text tower alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from unseen.detectors.base import DetectorOutput, Frozen
from unseen.errors import LabelError
from unseen_bench.methods.prompts.tower import PromptTokens, PromptTower

SCALE = 100.0
NEGATIVE_SCALE = 20.0  # of LSN's negative logits


def name_loss(z: Float[Tensor, "B d"], rows: Float[Tensor, "C d"], label: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """The cross-entropy of 100 cosines (CoOp)."""
    return cross_entropy(SCALE * z @ rows.T, label)


def patch_entropy(
    patches: Float[Tensor, "B P d"], rows: Float[Tensor, "K d"], label: Int[Tensor, " B"], *, top: int
) -> Float[Tensor, ""]:
    """The mean entropy of name probabilities of patches whose `top` best names lack the label (LoCoOp).

    0 where every patch has its label among them.
    """
    logits = SCALE * patches @ rows.T
    best = logits.topk(top, dim=2).indices
    outside = (best != label[:, None, None]).all(2)
    entropy = -(logits.softmax(2) * logits.log_softmax(2)).sum(2)
    return (entropy * outside).sum() / outside.sum().clamp(min=1)


def negative_loss(
    z: Float[Tensor, "B d"], negative: Float[Tensor, "N K d"], label: Int[Tensor, " B"]
) -> Float[Tensor, ""]:
    """The mean over N prompts per name of the cross-entropy of 20 (1 - cosine to "not this name") (LSN)."""
    distance = NEGATIVE_SCALE * (1 - torch.einsum("bd,nkd->nbk", z, negative))
    return torch.stack([cross_entropy(one, label) for one in distance]).mean()


def multi_label_loss(
    z: Float[Tensor, "B d"], rows: Float[Tensor, "G K d"], label: Int[Tensor, " B"]
) -> Float[Tensor, ""]:
    """The mean logistic loss of 100 cosines to G prompts per name; those of the label hold (NegPrompt)."""
    logits = SCALE * torch.einsum("bd,gkd->bgk", z, rows)
    holds = one_hot(label, rows.shape[1]).to(logits).unsqueeze(1).expand_as(logits)
    return binary_cross_entropy_with_logits(logits, holds)


def mean_pairwise_cosine(rows: Float[Tensor, "N *K d"]) -> Float[Tensor, ""]:
    """The mean cosine of different rows among N, over all K."""
    flat = rows.reshape(len(rows), -1, rows.shape[-1])
    if len(rows) < 2:
        return flat.new_zeros(())
    first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    return (flat[first] * flat[second]).sum(-1).mean()


Contexts = dict[str, Tensor]


class LabelledBatch(NamedTuple):
    """Features of examples; patches where a method needs them."""

    z: Float[Tensor, "B d"]
    label: Int[Tensor, " B"]
    patches: Float[Tensor, "B P d"] | None = None


class LearnedRows(NamedTuple):
    """Text features: of the known names, and of what the method has besides."""

    known: Float[Tensor, "K d"]
    negative: Float[Tensor, "*N d"]


@dataclass(frozen=True)
class PromptLearner(ABC):
    """A method that learns contexts for names. `epochs`, `rate` and `batch` are those of its paper."""

    epochs: int = 50
    rate: float = 0.002
    batch: int = 32
    context: int = 16  # tokens

    name: ClassVar[str]
    needs: ClassVar[str] = ""  # "patches" of the examples
    moves_negatives: ClassVar[bool] = False  # negatives of the label space are worded by the learned context too
    has_second_phase: ClassVar[bool] = False  # the second half of the epochs trains other contexts than the first

    def start(self, tower: PromptTower, names: int, generator: torch.Generator) -> Contexts:
        """The contexts before the first step."""
        return {"shared": tower.random_contexts(self.context, generator=generator)}

    def rows(
        self, tower: PromptTower, known: PromptTokens, negative: PromptTokens | None, contexts: Contexts
    ) -> LearnedRows:
        """The text features of all prompts."""
        found = tower.features(known, contexts["shared"])
        return LearnedRows(found, found.new_empty(0, found.shape[1]))

    @abstractmethod
    def loss(self, rows: LearnedRows, batch: LabelledBatch, done: float) -> Float[Tensor, ""]:
        """The loss of a batch; `done` is the share of the epochs that have passed."""

    def negatives(self, names: Sequence[str]) -> list[str]:
        """What the negative prompts are called; none where the method has none of its own."""
        return []


@dataclass(frozen=True)
class CoOp(PromptLearner):
    """One shared context by cross-entropy (IJCV 2022)."""

    name: ClassVar[str] = "coop"

    def loss(self, rows: LearnedRows, batch: LabelledBatch, done: float) -> Float[Tensor, ""]:
        return name_loss(batch.z, rows.known, batch.label)


@dataclass(frozen=True)
class LoCoOp(PromptLearner):
    """CoOp less 0.25 x the entropy of patches that do not show the name (NeurIPS 2023)."""

    name: ClassVar[str] = "locoop"
    needs: ClassVar[str] = "patches"
    weight: ClassVar[float] = 0.25
    top: ClassVar[int] = 200  # of ImageNet's 1,000 names

    def loss(self, rows: LearnedRows, batch: LabelledBatch, done: float) -> Float[Tensor, ""]:
        assert batch.patches is not None
        top = min(self.top, max(1, len(rows.known) // 5))  # the same share of fewer names
        entropy = patch_entropy(batch.patches.to(batch.z), rows.known, batch.label, top=top)
        return name_loss(batch.z, rows.known, batch.label) - self.weight * entropy


@dataclass(frozen=True)
class _WithNegatives(PromptLearner):
    """A method with contexts of its own for what a name is not."""

    per_name: ClassVar[int]

    def start(self, tower: PromptTower, names: int, generator: torch.Generator) -> Contexts:
        negative = tower.random_contexts(self.per_name, names, self.context, generator=generator)
        return super().start(tower, names, generator) | {"negative": negative}

    def rows(
        self, tower: PromptTower, known: PromptTokens, negative: PromptTokens | None, contexts: Contexts
    ) -> LearnedRows:
        own = [tower.features(known, one) for one in contexts["negative"]]
        return LearnedRows(tower.features(known, contexts["shared"]), torch.stack(own))

    def negatives(self, names: Sequence[str]) -> list[str]:
        return [f"not {name} ({number + 1})" for number in range(self.per_name) for name in names]


@dataclass(frozen=True)
class LSN(_WithNegatives):
    """A shared positive and three negative contexts per name (ICLR 2024); `lsn_score` is its own score."""

    name: ClassVar[str] = "lsn"
    per_name: ClassVar[int] = 3

    def loss(self, rows: LearnedRows, batch: LabelledBatch, done: float) -> Float[Tensor, ""]:
        apart = mean_pairwise_cosine(rows.negative)
        return name_loss(batch.z, rows.known, batch.label) + negative_loss(batch.z, rows.negative, batch.label) + apart


@dataclass(frozen=True)
class NegPrompt(_WithNegatives):
    """CoOp in the first half of the epochs, then two negative contexts per name, positives fixed (CVPR 2024)."""

    name: ClassVar[str] = "negprompt"
    has_second_phase: ClassVar[bool] = True
    per_name: ClassVar[int] = 2
    from_positives: ClassVar[float] = 1e-4
    from_each_other: ClassVar[float] = 1e-5

    def loss(self, rows: LearnedRows, batch: LabelledBatch, done: float) -> Float[Tensor, ""]:
        if done < 0.5:
            return name_loss(batch.z, rows.known, batch.label)
        known = rows.known.detach()  # a context without a gradient is not stepped at all, by momentum or decay
        loss = multi_label_loss(batch.z, torch.cat([known.unsqueeze(0), rows.negative]), batch.label)
        near = (rows.negative * known).sum(-1).mean()
        apart = mean_pairwise_cosine(rows.negative)
        return loss + self.from_positives * near + self.from_each_other * apart


@dataclass(frozen=True)
class LAPT(PromptLearner):
    """CoOp over known and negative names together (ECCV 2024), on the images that the user has."""

    epochs: int = 10
    rate: float = 0.01

    name: ClassVar[str] = "lapt"
    moves_negatives: ClassVar[bool] = True
    most_negatives: ClassVar[int] = 1000

    def rows(
        self, tower: PromptTower, known: PromptTokens, negative: PromptTokens | None, contexts: Contexts
    ) -> LearnedRows:
        found = tower.features(known, contexts["shared"])
        others = tower.features(negative, contexts["shared"]) if negative else found[:0]
        return LearnedRows(found, others)

    def loss(self, rows: LearnedRows, batch: LabelledBatch, done: float) -> Float[Tensor, ""]:
        return name_loss(batch.z, torch.cat([rows.known, rows.negative]), batch.label)


REGISTRY: dict[str, type[PromptLearner]] = {kind.name: kind for kind in (CoOp, LoCoOp, LSN, NegPrompt, LAPT)}


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
