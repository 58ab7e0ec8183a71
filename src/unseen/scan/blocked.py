"""The same numbers as `naive` from a few matrix products per block; README.md beside this file derives it."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.odds import Top, cache_sized_ranges, logits, top
from unseen.scan.base import Scan, joined

ROWS, TEACHERS = 512, 64  # samples of a block, and teaching ones among them, unless the caller names others
PANEL = 16  # teaching samples whose pairwise work is done one by one; the rest of it is a product per panel
LOG_RANGE = 60.0  # inside a block a row's scale may shrink to exp(-60), far from float32's underflow


class BlockUpdate(NamedTuple):
    """What a block does to the bank: after `i` of n teachers a row is `scale[i] * (row - coef[:i].T @ taught[:i])`."""

    taught: Float[Tensor, "n d"]
    coef: Float[Tensor, "n C"]
    scale: Float[Tensor, "n1 C"]


def scan(
    bank: Float[Tensor, "C d"],
    target_logits: Float[Tensor, "T C"],
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
    rows: int = ROWS,
    teachers: int = TEACHERS,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14).

    The reads of `rows` samples share one product. `teachers` is how many samples teach between two rewrites of the
    bank: a row's scale gathers one rounding from each.
    """
    reads = [top(z.new_empty(0, len(bank)))]
    for block in blocks(step, kappa, rows=rows, teachers=teachers):
        taught_at = step[block].nonzero().squeeze(1)
        if not len(taught_at):
            reads.append(top(logits(z[block], bank, tau=tau)))
            continue
        taught, target = z[block][taught_at], torch.softmax(target_logits[block][taught_at], dim=1)
        cosine, gram = logits(z[block], bank, tau=1), z[block] @ taught.T
        coef, scale = learn(cosine[taught_at], gram[taught_at], target, step[block][taught_at] / kappa, kappa)
        update = BlockUpdate(taught, coef, scale)
        reads.append(read(cosine, gram, update, taught_at, tau))
        bank = apply_update(bank, update)
    return Scan(joined(reads), bank)


def blocks(step: Float[Tensor, " T"], kappa: float, *, rows: int = ROWS, teachers: int = TEACHERS) -> list[slice]:
    """Consecutive ranges of at most `rows` samples with at most `teachers` teaching samples each."""
    limit = teachers
    if len(step):  # one update divides a row's scale by at most 1 + step / kappa
        limit = min(limit, 1 + int(LOG_RANGE / math.log1p(float(step.max()) / kappa + 1e-9)))
    count = (step > 0).cumsum(0)
    ranges, start, done = [], 0, 0
    while start < len(step):
        stop = min(start + rows, int(torch.searchsorted(count, done + limit, right=True)))
        ranges.append(slice(start, stop))
        start, done = stop, int(count[stop - 1])
    return ranges


def learn(
    cosine: Float[Tensor, "n C"],
    gram: Float[Tensor, "n n"],
    target: Float[Tensor, "n C"],
    rate: Float[Tensor, " n"],
    kappa: float,
) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n1 C"]]:
    """Each teaching sample's coefficient in each row, and the rows' scales after 0, 1, ... n of them."""
    n, classes = cosine.shape
    cosine, gram, aim = cosine.cpu(), gram.cpu(), (target * rate.unsqueeze(1)).cpu()
    coef = cosine.new_empty(n, classes)
    scale = cosine.new_ones(n + 1, classes)
    rates, aims, scales, coefs = rate.tolist(), aim.numpy(), scale.numpy(), coef.numpy()
    for first in range(0, n, PANEL):
        panel = torch.addmm(cosine[first : first + PANEL], gram[first : first + PANEL, :first], coef[:first], alpha=-1)
        for i, u in enumerate(panel.unbind(), first):
            u.addmv_(coef[first:i].T, gram[i, first:i], alpha=-1)
            move_row(u.numpy(), aims[i], rates[i], kappa, scales[i], scales[i + 1], coefs[i])
    return coef.to(rate.device), scale.to(rate.device)


Vector = np.ndarray[tuple[int, ...], np.dtype[np.floating]]


def move_row(u: Vector, aim: Vector, rate: float, kappa: float, before: Vector, after: Vector, coef: Vector) -> None:
    """Write into `coef` and the scale `after` what one teaching sample does, given its unscaled cosines `u`.

    NumPy in place, `u` overwritten: the vectors are small and the calls many, so torch's cost per call would be most
    of the time.
    """
    np.multiply(u, before, out=u)
    move = u - u.max()
    move *= 1 / kappa
    np.exp(move, out=move)
    move *= rate / float(move.sum())
    move -= aim
    np.divide(move, before, out=coef)
    # |w - move z|^2 = 1 + move (move - 2 u) needs no pass over w, because |w| = 1 and w.z is `u`
    u *= -2
    u += move
    u *= move
    u += 1
    np.maximum(u, 1e-24, out=u)
    np.sqrt(u, out=u)
    np.divide(before, u, out=after)


def read(
    cosine: Float[Tensor, "B C"],
    gram: Float[Tensor, "B n"],
    update: BlockUpdate,
    teachers: Int[Tensor, " n"],
    tau: float,
) -> Top:
    """How each sample of a block reads the bank after the teachers up to and including itself."""
    before = torch.searchsorted(teachers, torch.arange(len(cosine), device=cosine.device), right=True)
    past = gram * (torch.arange(len(teachers), device=cosine.device) < before.unsqueeze(1))
    unscaled = cosine.addmm_(past, update.coef, alpha=-1)
    scale = update.scale / tau
    return joined([top(unscaled[rows].mul_(scale[before[rows]])) for rows in cache_sized_ranges(unscaled)])


def apply_update(bank: Float[Tensor, "C d"], update: BlockUpdate) -> Float[Tensor, "C d"]:
    """The bank after a block, a cacheful of rows at a time: one pass over memory instead of four."""
    result = torch.empty_like(bank)
    for rows in cache_sized_ranges(bank):
        moved = torch.addmm(bank[rows], update.coef[:, rows].T, update.taught, alpha=-1)
        # normalised afresh rather than by the last scale, so that rounding does not add up over the stream
        torch.nn.functional.normalize(moved, dim=-1, out=result[rows])
    return result
