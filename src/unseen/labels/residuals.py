"""Move text anchors by a few examples: residuals on the rows of the text, as far as examples left out agree.

The loss of an example z of name y over known rows w and negative rows v, in nats at a temperature of 0.01:

    cross-entropy of y over all names  +  softplus(energy of the other known names - energy of the negatives) / 2

The second term takes the example for an image of an unknown name: without y the negatives should win. A residual is the
sum of a row's own and of a linear map of the text that all rows share, so that names alike move alike, with examples or
without. Both pay `penalty` nats per squared length.

Names that have examples gain logits which the others lack. So a name without examples is shifted towards the mean
example. Folds of the examples, which leave out some examples of every name and all of others, choose penalty and shift;
an infinite penalty, which moves nothing, stays unless another is better by more than a standard error, and names with
examples and names without are right no less often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softplus

from unseen.errors import DataError
from unseen.labels.examples import Division, Examples
from unseen.labels.space import LabelSpace


@dataclass(frozen=True)
class ResidualNumbers:
    """The numbers of a fit, chosen on stored CLIP features (docs/examples.md has what they give)."""

    tau: float = 0.01
    penalties: tuple[float, float] = (3000.0, 1000.0)  # nats per squared length of a residual, the more careful first
    shifts: tuple[float, ...] = tuple(0.005 * step for step in range(13))  # of names without examples
    shared: float = 0.5  # share of the variance of residuals that follows the text
    as_unknown: float = 0.5  # weight of the second term
    folds: int = 4  # at most; every example is left out once
    steps: int = 15  # of L-BFGS
    negatives: int = 1024  # nearest negatives that may move: the others have no mass at any example
    rounding: float = 1e-6  # of a sum of weights
    all: float = 0.9  # share of the examples that counts as nearly all of them


NUMBERS = ResidualNumbers()

FEWEST = 8  # examples in all: whether names are right no less often cannot be told by fewer


class TextRows(NamedTuple):
    """Rows of text that may move."""

    known: Float[Tensor, "K d"]
    negative: Float[Tensor, "M d"]

    @property
    def unit(self) -> TextRows:
        """The rows at unit length."""
        return TextRows(normalize(self.known, dim=1), normalize(self.negative, dim=1))


class Residuals(NamedTuple):
    """What is added to rows: to each its own, and a linear map of the text, centred and of mean length 1."""

    known: Float[Tensor, "K d"]
    negative: Float[Tensor, "M d"]
    shared: Float[Tensor, "d d"]

    @classmethod
    def zero(cls, rows: TextRows) -> Residuals:
        """Residuals that move nothing, to be fitted."""
        shared = rows.known.new_zeros(rows.known.shape[1], rows.known.shape[1])
        return cls(*(torch.zeros_like(part, requires_grad=True) for part in (*rows, shared)))

    @property
    def length(self) -> Float[Tensor, ""]:
        """The squared length of all parameters."""
        return torch.stack([part.square().sum() for part in self]).sum()

    def add_to(self, rows: TextRows, text: TextRows) -> TextRows:
        """The rows with their residuals; `text` is what the shared map reads."""
        return TextRows(
            *(
                row + math.sqrt(1 - NUMBERS.shared) * own + math.sqrt(NUMBERS.shared) * (words @ self.shared)
                for row, own, words in zip(rows, self[:2], text, strict=True)
            )
        )


class PenaltyChoice(NamedTuple):
    """Which penalty and shift the folds chose, and the mean loss of examples left out, before and after."""

    penalty: float
    shift: float
    frozen: float
    moved: float


def with_examples(space: LabelSpace, examples: Examples) -> LabelSpace:
    """A label space whose anchors examples have moved, as far as examples left out agree, and that holds them.

    Negatives make way for the examples. With no gain in the folds every anchor stays where it is. Copies of an image
    count once, and a name has no more than a few times as many as the others. Examples that agree neither with their
    names nor with each other are not used at all.

    One example of each name that has two or more teaches nothing: it tells the threshold (`Examples.for_threshold`).
    None is spared where most names have none: a threshold by examples of some would not hold for the others.
    """
    examples.check(space)
    if not len(distinct := examples.without_copies()):
        raise DataError(
            f"expected examples that show one name each, got {len(examples)} copies under several names; "
            "leave each image in the folder of its name alone"
        )
    shown = int((distinct.counts(len(space.names)) > 0).sum())
    is_shown = 2 * shown >= len(space.names)
    kept, spared = distinct.for_threshold() if is_shown else (distinct, distinct[torch.zeros_like(distinct.label) > 0])
    examples, device = kept.balanced(len(space.names)), space.id_anchors.device
    if is_contradicted(space.id_anchors.float(), examples.to(device=device)):
        return replace(space, manifest=space.manifest | {"examples": "0", "examples_refused": str(len(distinct))})
    places = nearest_negatives(space, examples.to(device=device))
    rows = TextRows(space.id_anchors.float(), space.ood_anchors[places].float())
    moved, choice = move_rows(rows, examples.to(device=device))
    negatives = space.ood_anchors.clone()
    negatives[places] = moved.negative.to(negatives)
    manifest = space.manifest | {
        "examples": str(len(examples)),
        "examples_penalty": f"{choice.penalty:g}",
        "examples_shift": f"{choice.shift:g}",
        "examples_loss": f"{choice.frozen:.3f} -> {choice.moved:.3f}",
    }
    return replace(
        space,
        id_anchors=moved.known.to(negatives),
        ood_anchors=negatives,
        manifest=manifest,
        examples=examples,
        spared=spared if len(spared) else None,
    )


def is_contradicted(names: Float[Tensor, "K d"], examples: Examples) -> bool:
    """Whether text and other examples both name the examples no better than by chance.

    Where chance could name nearly all of them, or no name has two examples, nothing can be said.
    """
    by_text = (examples.z @ names.T).argmax(1) == examples.label
    by_others = named_by_others(examples, len(names))
    judged = examples.counts(len(names))[examples.label] > 1
    return all(is_by_chance(right[judged], len(names)) for right in (by_text, by_others))


def is_by_chance(right: Bool[Tensor, " n"], names: int) -> bool:
    """Whether no more are right than chance would name, within two deviations."""
    count, chance = len(right), 1 / names
    limit = count * chance + 2 * math.sqrt(count * chance * (1 - chance))
    return int(right.sum()) <= limit < NUMBERS.all * count


def named_by_others(examples: Examples, names: int) -> Bool[Tensor, " n"]:
    """Which examples lie nearest to the mean of their name, each left out of it."""
    z, label = examples.z, examples.label
    counts = examples.counts(names)
    mean = z.new_zeros(names, z.shape[1]).index_add(0, label, z) / counts.clamp(min=1).unsqueeze(1)
    distance = torch.cdist(z, mean).masked_fill(counts == 0, math.inf)
    own = counts[label]
    # without x, the mean m of n lies n / (n - 1) times as far from x
    left_out = distance.gather(1, label.unsqueeze(1)) * (own / (own - 1).clamp(min=1)).unsqueeze(1)
    return distance.scatter(1, label.unsqueeze(1), left_out).argmin(1) == label


def move_rows(rows: TextRows, examples: Examples) -> tuple[TextRows, PenaltyChoice]:
    """The rows moved with the penalty and the shift that the folds choose."""
    choice = choose_penalty(rows, examples)
    if math.isinf(choice.penalty):
        return rows, choice
    return shift_names(fit_rows(rows, examples, choice.penalty), examples, choice.shift), choice


def choose_penalty(rows: TextRows, examples: Examples) -> PenaltyChoice:
    """Penalty and shift with the lowest loss of examples left out, infinity and 0 unless it is surely lower."""
    frozen = float(losses(rows, examples).mean())
    best = PenaltyChoice(math.inf, 0.0, frozen, frozen)
    names = len(rows.known)
    divisions = examples.folds(NUMBERS.folds, names=names)
    weight = fold_weights(divisions, coverage=float((examples.counts(names) > 0).double().mean()))
    if len(examples) < FEWEST or weight is None:
        return best
    before = left_out_outcome([rows] * len(divisions), divisions, 0.0)
    best = best._replace(frozen=float(weight @ before.loss), moved=float(weight @ before.loss))
    for penalty in NUMBERS.penalties:
        fits = [fit_rows(rows, kept, penalty) for kept, _ in divisions]
        for shift in NUMBERS.shifts if leaves_names_out(divisions) else NUMBERS.shifts[:1]:
            after = left_out_outcome(fits, divisions, shift)
            loss = float(weight @ after.loss)
            if loss < best.moved and surely_better(before, after, weight):
                best = PenaltyChoice(penalty, shift, best.frozen, loss)
    return best


class LeftOutOutcome(NamedTuple):
    """How examples that were left out fare."""

    loss: Float[Tensor, " n"]
    right: Float[Tensor, " n"]  # 1 where the most likely name is the right one
    seen: Bool[Tensor, " n"]  # whether the name had examples among those kept


def left_out_outcome(fits: Sequence[TextRows], divisions: Sequence[Division], shift: float) -> LeftOutOutcome:
    """How the examples that each division leaves out fare under rows fitted to those it keeps."""
    parts = []
    for rows, (kept, left_out) in zip(fits, divisions, strict=True):
        moved = shift_names(rows, kept, shift)
        right = (left_out.z @ moved.known.T).argmax(1) == left_out.label
        parts.append(LeftOutOutcome(losses(moved, left_out), right.float(), torch.isin(left_out.label, kept.label)))
    return LeftOutOutcome(*map(torch.cat, zip(*parts, strict=True)))


def surely_better(before: LeftOutOutcome, after: LeftOutOutcome, weight: Float[Tensor, " n"]) -> bool:
    """Whether the loss surely falls, and neither names with nor names without examples are right less often."""
    gain, won = before.loss - after.loss, after.right - before.right
    mean = weight @ gain
    none_loses = all(float(weight[side] @ won[side]) >= -NUMBERS.rounding for side in (before.seen, ~before.seen))
    return none_loses and bool(mean > (weight * (gain - mean)).norm())


def leaves_names_out(divisions: Sequence[Division]) -> bool:
    """Whether some division leaves out every example of a name."""
    return any(not bool(torch.isin(left_out.label, kept.label).all()) for kept, left_out in divisions)


def fold_weights(divisions: Sequence[Division], *, coverage: float) -> Float[Tensor, " n"] | None:
    """What each example left out counts, 1 in all: names with examples count `coverage`, the others the rest.

    None where nothing can be said of names with examples, because none has an example to spare, or of those without,
    because a single name has all the examples.
    """
    seen = torch.cat([torch.isin(left_out.label, kept.label) for kept, left_out in divisions])
    if coverage == 1 and not bool(seen.any()):  # one example of each name: names judge each other
        return torch.full_like(seen, 1 / len(seen), dtype=torch.float32)
    if not bool(seen.any()) or (coverage < 1 and bool(seen.all())):
        return None
    shares = coverage * seen / seen.sum() + (1 - coverage) * ~seen / (~seen).sum().clamp(min=1)
    return (shares / shares.sum()).float()


def fit_rows(rows: TextRows, examples: Examples, penalty: float) -> TextRows:
    """The rows with the residuals that minimise the penalised loss of all examples, at unit length."""
    residuals, text = Residuals.zero(rows), centre_rows(rows)
    optimiser = torch.optim.LBFGS([*residuals], max_iter=NUMBERS.steps, line_search_fn="strong_wolfe")

    def penalised_loss() -> Tensor:
        optimiser.zero_grad()
        loss = losses(residuals.add_to(rows, text), examples).mean() + penalty / len(examples) * residuals.length
        loss.backward()
        return loss

    optimiser.step(penalised_loss)
    return TextRows(*(side.detach() for side in residuals.add_to(rows, text))).unit


def centre_rows(rows: TextRows) -> TextRows:
    """The rows less their mean, in units of their mean length."""
    every = torch.cat([*rows])
    mean = every.mean(0)
    length = (every - mean).square().sum(1).mean().sqrt().clamp(min=1e-6)
    return TextRows(*((side - mean) / length for side in rows))


def shift_names(rows: TextRows, examples: Examples, shift: float) -> TextRows:
    """The rows with names that have no examples moved by `shift` towards the mean example."""
    has_none = (examples.counts(len(rows.known)) == 0).unsqueeze(1)
    towards = normalize(examples.z.mean(0), dim=0)
    return TextRows(normalize(rows.known + shift * has_none * towards, dim=1), rows.negative)


def losses(rows: TextRows, examples: Examples) -> Float[Tensor, " n"]:
    """The loss of each example."""
    known, negative = (examples.z @ side.T / NUMBERS.tau for side in rows)
    loss = cross_entropy(torch.cat([known, negative], dim=1), examples.label, reduction="none")
    if not len(rows.negative) or len(rows.known) == 1:
        return loss
    others = known.scatter(1, examples.label.unsqueeze(1), -math.inf)
    return loss + NUMBERS.as_unknown * softplus(torch.logsumexp(others, 1) - torch.logsumexp(negative, 1))


def nearest_negatives(space: LabelSpace, examples: Examples, *, most: int = NUMBERS.negatives) -> Int[Tensor, " M"]:
    """The negatives with the largest cosine to any example, at most `most`."""
    if len(space.negatives) <= most:
        return torch.arange(len(space.negatives), device=space.ood_anchors.device)
    largest = torch.stack([(block @ space.ood_anchors.float().T).amax(0) for block in examples.z.split(256)]).amax(0)
    return largest.topk(most).indices.sort().values
