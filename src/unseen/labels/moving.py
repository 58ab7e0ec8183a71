"""Move text anchors by a few examples: residuals on the rows of the text, as far as examples left out agree.

The loss of an example z of name y over known rows w and negative rows v, in nats at TAU:

    cross-entropy of y over all names  +  softplus(energy of the other known names - energy of the negatives) / 2

The second term takes the example for an image of an unknown name: without y the negatives should win. Residuals pay
`penalty` nats per squared length. Folds of the examples choose the penalty; infinity, which moves nothing, is among the
choices and stays unless another is better by more than a standard error.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softplus

from unseen.labels.examples import Examples
from unseen.labels.space import LabelSpace

TAU = 0.01
PENALTIES = (2500.0, 600.0)  # nats per squared length of a residual, the more careful first
AS_UNKNOWN = 0.5  # weight of the second term
FOLDS = 4  # at most; every example is left out once
STEPS = 15  # of L-BFGS
NEGATIVES = 1024  # nearest negatives that may move: the others have no mass at any example
FEWEST = 2  # examples: one cannot be judged by another


class Rows(NamedTuple):
    """Rows of text that may move."""

    known: Float[Tensor, "K d"]
    negative: Float[Tensor, "M d"]

    @property
    def unit(self) -> Rows:
        """Return the rows at unit length."""
        return Rows(normalize(self.known, dim=1), normalize(self.negative, dim=1))


class Choice(NamedTuple):
    """Which penalty the folds chose, and the mean loss of examples left out, before and after."""

    penalty: float
    frozen: float
    moved: float


def with_examples(space: LabelSpace, examples: Examples) -> LabelSpace:
    """Return a label space whose anchors examples have moved, as far as examples left out agree, and that holds them.

    A name without examples keeps its text; negatives make way for the examples. With no gain in the folds every anchor
    stays where it is.
    """
    examples.check(space)
    device = space.id_anchors.device
    places = nearest_negatives(space, examples.to(device=device))
    rows = Rows(space.id_anchors.float(), space.ood_anchors[places].float())
    moved, choice = move(rows, examples.to(device=device))
    negatives = space.ood_anchors.clone()
    negatives[places] = moved.negative.to(negatives)
    manifest = space.manifest | {
        "examples": str(len(examples)),
        "examples_penalty": f"{choice.penalty:g}",
        "examples_loss": f"{choice.frozen:.3f} -> {choice.moved:.3f}",
    }
    return replace(
        space, id_anchors=moved.known.to(negatives), ood_anchors=negatives, manifest=manifest, examples=examples
    )


def move(rows: Rows, examples: Examples) -> tuple[Rows, Choice]:
    """Return the rows moved with the penalty that the folds choose."""
    choice = choose(rows, examples)
    return (rows if math.isinf(choice.penalty) else fitted(rows, examples, choice.penalty)), choice


def choose(rows: Rows, examples: Examples) -> Choice:
    """Return the penalty with the lowest loss of examples left out, infinity unless it is surely lower."""
    frozen = losses(rows, examples)
    best = Choice(math.inf, float(frozen.mean()), float(frozen.mean()))
    if len(examples) < FEWEST:
        return best
    divisions = examples.folds(FOLDS)
    before = torch.cat([losses(rows, left_out) for _, left_out in divisions])
    for penalty in PENALTIES:
        after = torch.cat([losses(fitted(rows, kept, penalty), left_out) for kept, left_out in divisions])
        gain = before - after
        if float(gain.mean()) > float(gain.std()) / math.sqrt(len(gain)) and float(after.mean()) < best.moved:
            best = Choice(penalty, best.frozen, float(after.mean()))
    return best


def fitted(rows: Rows, examples: Examples, penalty: float) -> Rows:
    """Return the rows with the residuals that minimise the penalised loss of all examples, at unit length."""
    residual = Rows(*(torch.zeros_like(side, requires_grad=True) for side in rows))
    has_some = (examples.counts(len(rows.known)) > 0).unsqueeze(1)  # the text of other names stays
    optimiser = torch.optim.LBFGS([*residual], max_iter=STEPS, line_search_fn="strong_wolfe")

    def penalised() -> Tensor:
        optimiser.zero_grad()
        length = sum((side.square().sum() for side in residual), start=examples.z.new_zeros(()))
        loss = losses(_moved(rows, residual, has_some), examples).mean() + penalty / len(examples) * length
        loss.backward()
        return loss

    optimiser.step(penalised)
    return Rows(*(side.detach() for side in _moved(rows, residual, has_some))).unit


def _moved(rows: Rows, residual: Rows, has_some: Bool[Tensor, "K 1"]) -> Rows:
    return Rows(rows.known + has_some * residual.known, rows.negative + residual.negative)


def losses(rows: Rows, examples: Examples) -> Float[Tensor, " n"]:
    """Return the loss of each example."""
    known, negative = (examples.z @ side.T / TAU for side in rows)
    loss = cross_entropy(torch.cat([known, negative], dim=1), examples.label, reduction="none")
    if not len(rows.negative) or len(rows.known) == 1:
        return loss
    others = known.scatter(1, examples.label.unsqueeze(1), -math.inf)
    return loss + AS_UNKNOWN * softplus(torch.logsumexp(others, 1) - torch.logsumexp(negative, 1))


def nearest_negatives(space: LabelSpace, examples: Examples, *, most: int = NEGATIVES) -> Int[Tensor, " M"]:
    """Return the negatives with the largest cosine to any example, at most `most`."""
    if len(space.negatives) <= most:
        return torch.arange(len(space.negatives), device=space.ood_anchors.device)
    largest = torch.stack([(block @ space.ood_anchors.float().T).amax(0) for block in examples.z.split(256)]).amax(0)
    return largest.topk(most).indices.sort().values
