"""The recommended detector in float64, sample by sample, with everything computed anew from all samples so far."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from unseen import LabelSpace


class Sample(NamedTuple):
    """One sample that has been scored."""

    z: Tensor
    known: float  # its weight on the known side
    margin: float
    predicted: float
    nearest: int  # known name
    shares: tuple[dict[int, float], dict[int, float]]  # of known and of negative names


class Taught(NamedTuple):
    """A sample that has been learned, the number of samples before its update, and its place in the stream."""

    sample: Sample
    before: int
    place: int


class Result(NamedTuple):
    """What the reference says of each sample."""

    score: Tensor
    label: Tensor
    route: Tensor
    baseline: Tensor


def is_update(seen: int) -> bool:
    """Whether the state changes after this many samples: 1 each until 16, every 2 until 32, at most 256."""
    interval = 1
    while interval < 256 and seen > 16 * interval:
        interval *= 2
    return seen % interval == 0


def observed(labels: LabelSpace, z: Tensor) -> Result:
    """What the detector says of a stream."""
    one = Reference(labels)
    score, label, route = zip(*(one.observe(row) for row in z.double()), strict=True)
    scores = torch.tensor(score, dtype=torch.float64)
    routes = torch.tensor(route, dtype=torch.int8)
    return Result(scores, torch.tensor(label), routes, torch.full_like(scores, one.baseline))


class Reference:
    """Every sample is kept."""

    def __init__(self, labels: LabelSpace) -> None:
        self.anchors = [labels.id_anchors.double(), labels.ood_anchors.double()]
        self.text_mean = torch.cat(self.anchors).mean(0)
        self.baseline = math.log(len(self.anchors[0]) / len(self.anchors[1]))
        self.taught: list[Taught] = []
        self.pending: list[Sample] = []
        self.seen = 0
        self.update()

    def observe(self, z: Tensor) -> tuple[float, int, int]:
        text = [(anchors @ z / 0.01).tolist() for anchors in self.anchors]
        tops = [sorted(range(len(one)), key=lambda c, one=one: -one[c])[:16] for one in text]
        added = [{c: self.image_logits(side, c, z) for c in tops[side]} for side in (0, 1)]
        gains = [
            lse([text[side][c] + added[side][c][1] for c in tops[side]]) - lse([text[side][c] for c in tops[side]])
            for side in (0, 1)
        ]
        nearest = tops[0][0]
        mean_votes = sum(self.unsure) / len(self.unsure)
        frozen = lse(text[0]) - lse(text[1]) - math.log((self.unsure[nearest] + 5) / (mean_votes + 5))
        predicted = float((z - self.centre) @ self.slope) + self.level
        score = frozen + raised(gains[0] - gains[1] + self.rate * (predicted - self.middle))
        margin = frozen + raised(gains[0] - gains[1]) - self.baseline
        known = 1 / (1 + math.exp(-(margin - 1)))
        claimed = [{c: text[side][c] + 0.5 * added[side][c][1] for c in tops[side]} for side in (0, 1)]
        whole = lse([*claimed[0].values(), *claimed[1].values()])
        shares = tuple(
            {c: weight * math.exp(claimed[side][c] - whole) for c in tops[side]}
            for side, weight in ((0, known), (1, 1 - known))
        )
        self.pending.append(Sample(z, known, margin, predicted, nearest, (shares[0], shares[1])))
        self.seen += 1
        label = max(tops[0], key=lambda c: self.naming(text[0][c], c, added[0][c]))
        if is_update(self.seen):
            self.update()
        return score, label, 1 if known >= 0.5 else -1

    def naming(self, logit: float, name: int, added: tuple[float, float, float]) -> float:
        start, learned, images = added
        return logit + start + images / (images + 32) * (learned - start) - 0.5 * math.log1p(self.votes[name] / 5)

    def image_logits(self, side: int, name: int, z: Tensor) -> tuple[float, float, float]:
        """What image space adds to a logit: of the start of the name, and of its mean now; and its images."""
        images, total = self.claimed[side].get(name, (0.0, torch.zeros_like(z)))
        start = self.side_means[1 - side] + 0.25 * (self.anchors[side][name] - self.text_mean)
        mean = (start + total) / (1 + images)
        return 40 * float(z @ start - start @ start / 2), 40 * float(z @ mean - mean @ mean / 2), images

    def update(self) -> None:
        """Learn the pending samples, an image that came before left out, and compute everything anew."""
        before = self.seen - len(self.pending)
        earlier, new = {bytes(one.sample.z.numpy()) for one in self.taught}, list[Sample]()
        for sample in self.pending:
            if bytes(sample.z.numpy()) not in earlier:
                new.append(sample)
            earlier.add(bytes(sample.z.numpy()))
        self.taught += [Taught(sample, before, before + len(new)) for sample in new]
        self.pending = []
        self.votes, self.unsure = ([0.0] * len(self.anchors[0]) for _ in range(2))
        self.claimed: tuple[dict[int, tuple[float, Tensor]], ...] = ({}, {})
        for sample, *_ in self.taught:
            self.votes[sample.nearest] += sample.known
            self.unsure[sample.nearest] += 1 / (1 + math.exp(sample.margin - 4))
            for claimed, shares in zip(self.claimed, sample.shares, strict=True):
                for name, share in shares.items():
                    if share >= 1e-3:
                        images, total = claimed.get(name, (0.0, torch.zeros_like(sample.z)))
                        claimed[name] = images + share, total + share * sample.z
        self.side_means = [torch.zeros_like(self.text_mean)] * 2
        self.slope = self.centre = torch.zeros_like(self.text_mean)
        self.level, self.rate, self.middle = 2.5, 0.0, 0.0
        if self.taught:
            self.fit()

    def fit(self) -> None:
        """Compute what follows from all samples: the means of both sides, direction and likelihood."""
        z = torch.stack([one.sample.z for one in self.taught])
        known, margin, u = torch.tensor([one.sample[1:4] for one in self.taught], dtype=z.dtype).T
        sides = torch.stack([1 - known, known], 1)
        count = sides.sum(0)
        overall = (sides.T @ z).sum(0) / max(1.0, float(count.sum()))
        self.side_means = [(sides[:, side] @ z + 8 * overall) / (count[side] + 8) for side in (0, 1)]
        if self.seen >= 32:
            effective = float(4 / (1 / count).sum())
            rows = (sides / count).mean(1)  # each side weighs one half
            self.centre = rows @ z
            off = z - self.centre
            scatter = off.T @ (rows[:, None] * off) + 2 / effective * torch.eye(z.shape[1], dtype=z.dtype)
            self.slope = torch.linalg.solve(scatter, off.T @ (rows * (margin - rows @ margin)))
            self.level = float(((sides.T @ margin + 8 * margin.new_tensor([0, 5])) / (count + 8)).mean())
            usable = [i for i, one in enumerate(self.taught) if one.before >= 32]
            place = margin.new_tensor([one.place for one in self.taught])
            if usable:
                self.fit_likelihood(u[usable], (sides * place[:, None] / self.seen)[usable], effective)

    def fit_likelihood(self, u: Tensor, weight: Tensor, effective: float) -> None:
        """Fit two normals of one variance to the predictions, and how far they fall into two groups."""
        overall = float(weight.sum(1) @ u / weight.sum())
        spread = max(float(weight.sum(1) @ u**2 / weight.sum()) - overall**2, 1e-4)
        mean, square = (
            (weight.T @ power + 16 * start) / (weight.sum(0) + 16)
            for power, start in ((u, overall), (u**2, spread + overall**2))
        )
        variance = float((square - mean**2).clamp(min=1e-4).mean())
        self.middle = float(mean.mean())
        self.rate = effective / (effective + 16) * math.sqrt(two_groups(u)) * float(mean[1] - mean[0]) / variance


def raised(ratio: float) -> float:
    """A log ratio of known to unknown where four unknown images in ten look like known ones."""
    return -math.log(0.4 * math.exp(-max(-50, min(50, ratio))) + 0.6)


def two_groups(u: Tensor) -> float:
    """Sarle's coefficient of bimodality: 0 for a normal, 1 for two points."""
    if len(u) <= 4:
        return 0.0
    off = u - u.mean()
    variance = max(float((off**2).mean()), 1e-6 * float((u**2).mean()) + 1e-4)
    skewness, kurtosis = float((off**3).mean()) / variance**1.5, float((off**4).mean()) / variance**2
    return min(1.0, max(0.0, ((skewness**2 + 1) / max(1.0, kurtosis) - 1 / 3) * 1.5))


def lse(values: list[float]) -> float:
    most = max(values)
    return most + math.log(sum(math.exp(value - most) for value in values))
