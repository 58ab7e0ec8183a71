"""The same numbers as `naive` from a few matrix products per block; README.md beside this file derives it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.odds import Top, top
from unseen.scan.base import Scan, joined

ROWS = 512  # samples whose reads share one product
TEACHERS = 64  # teaching samples between two rewrites of the bank: their pairwise work grows with the square
LOG_RANGE = 60.0  # inside a block a row's scale may shrink to exp(-60), far from float32's underflow


def scan(
    bank: Float[Tensor, "C d"],
    anchors: Float[Tensor, "C d"],
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
    targets: Float[Tensor, "T C"] | None = None,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    reads = []
    for start, stop in blocks(step, kappa):
        here = slice(start, stop)
        teachers = step[here].nonzero().squeeze(1)
        taught = z[here][teachers]
        target = torch.softmax(taught @ anchors.T / tau, dim=1) if targets is None else targets[here][teachers]
        read, bank = scan_block(bank, z[here], taught, target, teachers, step[here][teachers] / kappa, kappa, tau)
        reads.append(read)
    return Scan(joined(reads) if reads else top(z.new_empty(0, bank.shape[0])), bank)


def blocks(step: Float[Tensor, " T"], kappa: float) -> list[tuple[int, int]]:
    """Return consecutive ranges of at most ROWS samples with at most TEACHERS teaching samples each."""
    count = (step > 0).cumsum(0)
    # One update divides a row's scale by at most 1 + step / kappa
    teachers = (
        min(TEACHERS, 1 + int(LOG_RANGE / math.log1p(float(step.max()) / kappa))) if bool(count[-1:].any()) else 1
    )
    ranges, start, done = [], 0, 0
    while start < len(step):
        full = int(torch.searchsorted(count, done + teachers, right=True))
        stop = min(start + ROWS, full)
        ranges.append((start, stop))
        start, done = stop, int(count[stop - 1])
    return ranges


def scan_block(
    bank: Float[Tensor, "C d"],
    z: Float[Tensor, "B d"],
    taught: Float[Tensor, "n d"],
    target: Float[Tensor, "n C"],
    teachers: Int[Tensor, " n"],
    rate: Float[Tensor, " n"],
    kappa: float,
    tau: float,
) -> tuple[Top, Float[Tensor, "C d"]]:
    """Return the reads of one block and the bank after it; every row stays `scale * (bank + coef @ taught)` inside."""
    cosine = z @ bank.T
    if not len(teachers):
        return top(cosine / tau), bank
    gram = z @ taught.T
    coef, scale = learn(cosine[teachers], gram[teachers], target, rate, kappa)
    before = torch.searchsorted(teachers, torch.arange(len(z), device=z.device), right=True)
    past = gram * (torch.arange(len(teachers), device=z.device) < before.unsqueeze(1))
    logits = cosine.addmm_(past, coef).mul_(scale[before] / tau)
    return top(logits), (bank + coef.T @ taught) * scale[-1].unsqueeze(1)


def learn(
    cosine: Float[Tensor, "n C"],
    gram: Float[Tensor, "n n"],
    target: Float[Tensor, "n C"],
    rate: Float[Tensor, " n"],
    kappa: float,
) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n1 C"]]:
    """Return each teaching sample's coefficient in each row, and the rows' scales after 0, 1, ... n of them."""
    n, classes = cosine.shape
    coef = cosine.new_empty(n, classes)
    scale = cosine.new_ones(n + 1, classes)
    for i in range(n):
        u = torch.addmv(cosine[i], coef[:i].T, gram[i, :i]).mul_(scale[i])
        move = torch.softmax(u / kappa, dim=0).sub_(target[i]).mul_(rate[i])
        # |w - move z| needs no pass over w, because |w| = 1 and w.z is `u`
        norm = move.sub(u, alpha=2).mul_(move).add_(1).clamp_(min=1e-24).sqrt_()
        torch.div(move, scale[i], out=coef[i]).neg_()
        torch.div(scale[i], norm, out=scale[i + 1])
    return coef, scale
