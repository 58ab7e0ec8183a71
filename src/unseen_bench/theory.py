"""The paper's theory as measurements: optimal prototypes, the gap's lower bound, regret (Theorems 1-3).

This is analysis, not a detector. Labels are pseudo-labels of the frozen text unless true ones are passed. Three
limits of the theorems, as the code handles them:

- Theorem 1 holds up to sign. A minimiser on the sphere may point against `l2(v)`, where the loss would rather have a
  shorter prototype; `Prototypes.sign` is -1 there. Iterating the closed form diverges, so it is only the stopping test.
- Theorem 2 is empty once the features span the whole space, which n >= d real features always do.
- Theorem 3 takes normalisation for a projection onto a convex set, and the sphere is not one: regret is measured here,
  beside the paper's constant, and nothing is guaranteed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from unseen.detectors.base import in_range, positive, unit
from unseen.errors import FeatureError, SettingError
from unseen.labels import LabelSpace
from unseen.scan.gate import decaying_steps
from unseen_bench.walk import walk


@dataclass(frozen=True)
class SearchNumbers:
    """When a search ends."""

    tolerance: float = 1e-2  # of the residual of Theorem 1 at which a search has converged
    most_iterations: int = 4000  # 5,000 images took 370 to 930 with names, 1,710 with 742 negatives
    stalled: int = 10  # roundings of the loss: a round of the optimiser that gains less has found what there is
    round: int = 10  # optimiser iterations between two looks at the stopping test


NUMBERS = SearchNumbers()


class Modality(NamedTuple):
    """How far apart images and text lie, before anything is learned."""

    image_image: float  # mean cosine of two different images
    image_text: float
    text_text: float
    centroids: float  # distance between the two means


class Prototypes(NamedTuple):
    """The best fixed bank found, and how well it satisfies Theorem 1."""

    bank: Float[Tensor, "C d"]
    residual: Float[Tensor, " C"]  # |w - sign l2(v(w))|; nan where v vanishes
    sign: Int[Tensor, " C"]  # +1: the closed form as printed, -1: its opposite, 0: v vanishes and any w would do
    loss: Float[Tensor, ""]
    iterations: int
    converged: bool = False  # every class meets the closed form within the tolerance, or none is pulled anywhere

    @property
    def largest_residual(self) -> float:
        """The residual of the class that meets the closed form worst."""
        return float(self.residual.nan_to_num().max())

    @property
    def undefined(self) -> Bool[Tensor, " C"]:
        """For which classes v vanishes, so that the closed form has no direction."""
        return self.sign == 0


class Bound(NamedTuple):
    """Theorem 2: what no prototype in the span of the images can undercut."""

    bound: Float[Tensor, " C"]
    rank: int


class Regret(NamedTuple):
    """Theorem 3 along one stream: what learning online cost against the best fixed bank found in hindsight.

    The search may stop in a local minimum, so the true regret is at least this.
    """

    loss: Float[Tensor, " T"]  # of each sample, before the bank learned from it
    best: Float[Tensor, " T"]  # of each sample under the best fixed bank
    gradient: Float[Tensor, " T"]  # Frobenius norm of each step's gradient
    bank: Float[Tensor, "C d"]  # after the last sample
    rho: float

    @property
    def curve(self) -> Float[Tensor, " T"]:
        """The cumulative regret after each sample."""
        return (self.loss - self.best).cumsum(0)

    @property
    def constant(self) -> float:
        """The paper's 2M / rho + eps^2 rho, with eps the largest gradient this stream had."""
        return 2 * len(self.bank) / self.rho + float(self.gradient.max()) ** 2 * self.rho

    @property
    def bound(self) -> Float[Tensor, " T"]:
        """The paper's bound after each sample; it would hold if the sphere were convex."""
        return self.constant * torch.arange(1, len(self.loss) + 1, device=self.loss.device).double().sqrt()


@dataclass(frozen=True, eq=False)
class Gap:
    """Everything `unseen bench gap` prints."""

    names: tuple[str, ...]
    modality: Modality
    best: Prototypes
    distance: Float[Tensor, " K"]  # |r - w*|^2
    bound: Bound
    leading_bound: Bound  # of prototypes within the directions that hold 95 % of the images' energy
    own_bound: Float[Tensor, " K"]  # of prototypes made of the class's own images
    regret: Regret


def measure(
    labels: LabelSpace,
    z: Float[Tensor, "T d"],
    *,
    truth: Int[Tensor, " T"] | None = None,
    negatives: bool = False,
    tau: float = 0.01,
    kappa: float = 0.05,
    rho: float = 0.1,
    tol: float = NUMBERS.tolerance,
    steps: int = NUMBERS.most_iterations,
) -> Gap:
    """Theorems 1-3 for a stream: prototypes of `truth` if given, else of the frozen text's soft labels.

    With `negatives` the bank is that of the negatives (Eq. 13), for which there is no truth.
    """
    positive(tau=tau, kappa=kappa, rho=rho, tol=tol)
    if negatives and truth is not None:
        raise SettingError("expected truth or negatives, got both; a negative is the true name of no image")
    names, anchors = (labels.negatives, labels.ood_anchors) if negatives else (labels.names, labels.id_anchors)
    anchors = anchors.double()  # in float32 rounding hides the last gains of the search, which stops too early
    z = _checked(anchors, z)
    soft = pseudo_targets(anchors, z, tau=tau)
    pseudo = optimal_prototypes(z, soft, kappa=kappa, tol=tol, steps=steps)
    if truth is None:
        best, classes = pseudo, soft.argmax(dim=1)
    else:
        best = optimal_prototypes(z, hard_targets(anchors, z, truth), kappa=kappa, tol=tol, steps=steps)
        classes = truth
    return Gap(
        names=names,
        modality=modality(anchors, z),
        best=best,
        distance=(anchors - best.bank).square().sum(dim=1),
        bound=span_bound(anchors, z),
        leading_bound=span_bound(anchors, z, energy=0.95),
        own_bound=class_bound(anchors, z, classes),
        regret=regret(anchors, z, soft, best=pseudo.bank, kappa=kappa, rho=rho),
    )


def modality(anchors: Float[Tensor, "C d"], z: Float[Tensor, "T d"]) -> Modality:
    """The mean cosines within and between images and text, and the distance of their centroids."""
    image, text = z.double().mean(dim=0), anchors.double().mean(dim=0)
    return Modality(
        _mean_cosine(image, len(z)),
        float(image @ text),
        _mean_cosine(text, len(anchors)),
        float(torch.linalg.vector_norm(image - text)),
    )


def pseudo_targets(anchors: Float[Tensor, "C d"], z: Float[Tensor, "T d"], *, tau: float) -> Float[Tensor, "T C"]:
    """The frozen text's own soft labels (the targets of Eq. 7)."""
    return torch.softmax(z @ anchors.T / tau, dim=1)


def hard_targets(anchors: Float[Tensor, "C d"], z: Float[Tensor, "T d"], label: Int[Tensor, " T"]) -> Tensor:
    """Given labels as one-hot targets (the targets of Eq. 4)."""
    classes = len(anchors)
    if label.shape != z.shape[:1] or label.is_floating_point() or bool(((label < 0) | (label >= classes)).any()):
        raise FeatureError(
            f"expected one label from 0 to {classes - 1} for each of {len(z)} samples, "
            f"got {label.dtype} {list(label.shape)}; leave out samples of other classes"
        )
    return one_hot(label.long(), classes).to(z)


def optimal_prototypes(
    z: Float[Tensor, "T d"],
    targets: Float[Tensor, "T C"],
    *,
    kappa: float,
    tol: float = NUMBERS.tolerance,
    steps: int = NUMBERS.most_iterations,
) -> Prototypes:
    """The unit rows that minimise Eq. 4 (one-hot targets) or Eq. 7 (soft ones) over all samples (Theorem 1).

    L-BFGS over free rows whose directions are the prototypes; it stops when every class meets the closed form within
    `tol`, when the loss no longer falls, or after `steps` iterations. Where targets can be met exactly, v goes to 0 and
    its direction to noise: there the search ends by the loss alone.
    """
    positive(kappa=kappa, tol=tol)
    if not len(z):
        raise FeatureError("expected at least one sample to fit prototypes to, got none; pass the features of a stream")
    # The loss sees directions only, so a row's length is free: sqrt(mass) evens out how much each class weighs
    mass = targets.sum(dim=0) + 0.1
    start = normalize((targets - targets.mean(dim=1, keepdim=True)).T @ z, dim=1)
    free = (start * mass.sqrt().unsqueeze(1)).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [free],
        max_iter=NUMBERS.round,
        history_size=10,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Float[Tensor, ""]:
        length = torch.linalg.vector_norm(free, dim=1, keepdim=True)
        bank = free / length
        loss, pull, _ = _pull(z, targets, bank, kappa)
        free.grad = -_tangent(pull, bank) / (kappa * length)
        return loss

    iterations = 0
    found = _prototypes(z, targets, start, kappa, iterations)
    gained = torch.full_like(found.loss, torch.inf)
    least = NUMBERS.stalled * torch.finfo(z.dtype).eps
    while iterations < steps and bool((found.residual > tol).any()) and bool(gained > least * found.loss.abs()):
        with torch.no_grad():
            optimiser.step(closure)
        iterations += NUMBERS.round
        before, found = found.loss, _prototypes(z, targets, normalize(free.detach(), dim=1), kappa, iterations)
        gained = before - found.loss
    return found._replace(converged=not bool((found.residual > tol).any()))


def span_bound(anchors: Float[Tensor, "C d"], z: Float[Tensor, "T d"], *, energy: float = 1.0) -> Bound:
    """2 (1 - |Proj r|) per class for the span of `z`, and the rank of that span (Theorem 2).

    With `energy` below 1 the span is that of the leading directions, which hold this share of the squared length of the
    features: then it bounds only prototypes within those directions, not the optimal ones.
    """
    in_range("energy", energy, 0, 1, low_open=True)
    directions = _directions(z, energy)
    inside = torch.linalg.vector_norm(anchors @ directions.T, dim=1)
    return Bound((2 - 2 * inside).clamp(min=0), len(directions))


def class_bound(
    anchors: Float[Tensor, "C d"], z: Float[Tensor, "T d"], label: Int[Tensor, " T"]
) -> Float[Tensor, " C"]:
    """The bound on prototypes made of the class's own images alone, such as their mean; 2 without images."""
    return torch.cat([span_bound(anchors[c : c + 1], z[label == c]).bound for c in range(len(anchors))])


def regret(
    start: Float[Tensor, "C d"],
    z: Float[Tensor, "T d"],
    targets: Float[Tensor, "T C"],
    *,
    best: Float[Tensor, "C d"],
    kappa: float,
    rho: float,
) -> Regret:
    """Each sample's loss before the bank learns from it (Eq. 8), beside that of a fixed bank (Theorem 3)."""
    positive(kappa=kappa, rho=rho)
    if not len(z):
        raise FeatureError("expected at least one sample to measure regret on, got none; pass the features of a stream")
    everyone = torch.ones(len(z), dtype=torch.bool, device=z.device)
    step, _ = decaying_steps(everyone, torch.zeros((), dtype=torch.int64, device=z.device), rho=rho, dtype=z.dtype)
    bank, losses, gradients = start, [], []
    for part in walk(start, z, targets, step, kappa=kappa):
        before, target = part.cosine / kappa, targets[part.rows]
        losses.append(_loss(before, target))
        gradients.append(torch.linalg.vector_norm(torch.softmax(before, dim=1) - target, dim=1) / kappa)
        bank = part.after
    fixed = _loss(z @ best.T / kappa, targets)
    return Regret(torch.cat(losses).double(), fixed.double(), torch.cat(gradients).double(), bank, rho)


def _checked(anchors: Tensor, z: Tensor) -> Tensor:
    if z.ndim != 2 or z.shape[1] != anchors.shape[1] or not len(z):
        raise FeatureError(
            f"expected features of shape [n, {anchors.shape[1]}] for this label space, got {list(z.shape)}; "
            "pass at least one sample from the same encoder"
        )
    return unit(z, like=anchors)


def _mean_cosine(mean: Tensor, count: int) -> float:
    # the sum over all pairs is |sum|^2, and the count pairs of a vector with itself are left out
    return float((mean.square().sum() * count - 1) / (count - 1)) if count > 1 else float("nan")


def _loss(logits: Tensor, targets: Tensor) -> Float[Tensor, " T"]:
    return torch.logsumexp(logits, dim=1) - (targets * logits).sum(dim=1)


def _pull(z: Tensor, targets: Tensor, bank: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, Theorem 1's v = sum_i (p_i - pi_i) z_i of each class, and the mass that was weighed for it."""
    logits = z @ bank.T / kappa
    pi = torch.softmax(logits, dim=1)
    return _loss(logits, targets).sum(), (targets - pi).T @ z, (targets + pi).sum(dim=0)


def _tangent(vectors: Tensor, bank: Tensor) -> Tensor:
    return vectors - (vectors * bank).sum(dim=1, keepdim=True) * bank


def _prototypes(z: Tensor, targets: Tensor, bank: Tensor, kappa: float, iterations: int) -> Prototypes:
    loss, pull, mass = _pull(z, targets, bank, kappa)
    length = torch.linalg.vector_norm(pull, dim=1)
    vanishes = length <= torch.finfo(z.dtype).eps ** 0.5 * mass
    sign = torch.where(vanishes, 0, torch.where((pull * bank).sum(dim=1) < 0, -1, 1))
    residual = torch.linalg.vector_norm(bank - sign.unsqueeze(1) * normalize(pull, dim=1), dim=1)
    return Prototypes(bank, residual.masked_fill(vanishes, float("nan")), sign, loss, iterations)


def _directions(z: Tensor, energy: float) -> Float[Tensor, "rank d"]:
    if not len(z):
        return z
    # the triangle of a QR has the singular values and right vectors of z, and at most d rows
    _, values, vectors = torch.linalg.svd(torch.linalg.qr(z, mode="r").R, full_matrices=False)
    rank = int((values > values[0] * max(z.shape) * torch.finfo(z.dtype).eps).sum())
    if energy < 1:
        held = values.double().square().cumsum(0)
        rank = min(rank, 1 + int((held < energy * held[-1]).sum()))
    return vectors[:rank]
