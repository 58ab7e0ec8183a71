"""The recommended detector in float64, sample by sample, with everything computed anew from all samples so far."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from unseen import LabelSpace
from unseen.detectors.pooled.evidence import expected_maximum, gap_shrinkage


class Sample(NamedTuple):
    """One sample that has been scored."""

    z: Tensor
    weight: tuple[float, float]  # of the unknown and the known side
    margin: float
    predicted: float
    nearest: int  # known name
    shares: tuple[dict[int, float], dict[int, float]]  # of known and of negative names


class Taught(NamedTuple):
    """A sample that has been learned, and how many samples had been seen before and after its update."""

    sample: Sample
    before: int
    after: int


class Result(NamedTuple):
    """What the reference says of each sample."""

    score: Tensor
    label: Tensor
    route: Tensor
    baseline: Tensor


class Frozen(NamedTuple):
    """What the frozen text says of one sample."""

    logits: tuple[list[float], list[float]]
    evidence: float
    moments: tuple[float, float, float]


def is_update(seen: int) -> bool:
    """Whether the state changes after this many samples: 1 each until 16, every 2 until 32, at most 256."""
    interval = 1
    while interval < 256 and seen > 16 * interval:
        interval *= 2
    return seen % interval == 0


def observed(labels: LabelSpace, z: Tensor) -> Result:
    """What the detector says of a stream."""
    one = Reference(labels)
    score, label, route, baseline = zip(*(one.observe(row) for row in z.double()), strict=True)
    floats = (torch.tensor(column, dtype=torch.float64) for column in (score, baseline))
    return Result(next(floats), torch.tensor(label), torch.tensor(route, dtype=torch.int8), next(floats))


class Reference:
    """Every sample is kept."""

    def __init__(self, labels: LabelSpace) -> None:
        self.anchors = [labels.id_anchors.double(), labels.ood_anchors.double()]
        self.text_mean = torch.cat(self.anchors).mean(0)
        self.shrinkage = gap_shrinkage(labels)
        self.moments: list[tuple[float, float, float]] = []
        self.taught: list[Taught] = []
        self.pending: list[Sample] = []
        self.update()

    def observe(self, z: Tensor) -> tuple[float, int, int, float]:
        text = self.frozen(z)
        if len(self.moments) < 256:
            self.moments.append(text.moments)
        base = self.baseline()
        gains, named = [], []
        for side in (0, 1):
            top = sorted(range(len(text.logits[side])), key=lambda c, side=side: -text.logits[side][c])[:16]
            added = {c: self.image_logits(side, c, z) for c in top}
            named.append(added)
            gains.append(
                lse([text.logits[side][c] + added[c][1] for c in top]) - lse([text.logits[side][c] for c in top])
            )
        nearest = next(iter(named[0]))
        mean_votes = sum(self.votes) / len(self.votes)
        own = text.evidence + gains[0] - gains[1] - 1.5 * math.log((self.votes[nearest] + 5) / (mean_votes + 5))
        predicted = float((z - self.centre) @ self.slope) + self.level
        ratio = math.exp(max(-50, min(50, self.rate * (predicted - self.middle))))
        score = own + math.log(ratio / (0.9 + 0.1 * ratio))
        known = 1 / (1 + math.exp(-0.5 * (own - base - 1)))
        corrected = [{c: text.logits[side][c] + 0.5 * named[side][c][1] for c in named[side]} for side in (0, 1)]
        whole = lse([*corrected[0].values(), *corrected[1].values()])
        shares = [
            {c: weight * math.exp(corrected[side][c] - whole) for c in named[side]}
            for side, weight in ((0, known), (1, 1 - known))
        ]
        self.pending.append(Sample(z, (1 - known, known), own - base, predicted, nearest, (shares[0], shares[1])))
        label = max(named[0], key=lambda c: self.naming(text.logits[0][c], c, named[0][c]))
        if is_update(len(self.taught) + len(self.pending)):
            self.update()
        return score, label, 1 if known >= 0.5 else -1, base

    def naming(self, logit: float, name: int, added: tuple[float, float, float]) -> float:
        start, learned, images = added
        return logit + start + images / (images + 32) * (learned - start) - 0.5 * math.log1p(self.votes[name] / 5)

    def frozen(self, z: Tensor) -> Frozen:
        known, negative = (a @ z / 0.01 for a in self.anchors)
        k = len(known)
        gap, contrast = known.mean() - negative.mean(), known.max() - known.mean()
        variance = (k * known.var(correction=0) + 10 * negative.var(correction=0)) / (k + 10)
        evidence = known.logsumexp(0) - negative.logsumexp(0) - self.shrinkage * gap
        evidence = evidence + contrast / 2 + contrast**2 / (2 * variance) / 4
        rest = known.sort().values[:-1]  # all but the best
        first, second = expected_maximum(k), expected_maximum(k, power=2)
        kept = (k - second) / (k - 1) - (k - 2 + second) / (k - 1) ** 2
        deviation = (rest.var(correction=0) / kept).sqrt()
        mean = rest.mean() + first / (k - 1) * deviation
        moments = float(deviation), float(negative.std(correction=0)), float(mean - negative.mean())
        return Frozen((known.tolist(), negative.tolist()), float(evidence), moments)

    def baseline(self) -> float:
        known, negative, gap = (sum(column) / len(self.moments) for column in zip(*self.moments, strict=True))
        k, count = (len(a) for a in self.anchors)
        contrast = expected_maximum(k) * known
        variance = (k * known**2 + 10 * negative**2) / (k + 10)
        odds = typical_energy(k, known) - typical_energy(count, negative) + (1 - self.shrinkage) * gap
        return odds + contrast / 2 + contrast**2 / (2 * variance) / 4

    def image_logits(self, side: int, name: int, z: Tensor) -> tuple[float, float, float]:
        """What image space adds to a logit: of the start of the name, and of its mean now; and its images."""
        images, total = self.claimed[side].get(name, (0.0, torch.zeros_like(z)))
        start = self.side_means[1 - side] + 0.25 * (self.anchors[side][name] - self.text_mean)
        mean = (start + total) / (1 + images)
        return 40 * float(z @ start - start @ start / 2), 40 * float(z @ mean - mean @ mean / 2), images

    def update(self) -> None:
        """Learn the pending samples and compute everything anew."""
        before = len(self.taught)
        after = before + len(self.pending)
        self.taught += [Taught(sample, before, after) for sample in self.pending]
        self.pending = []
        samples = [one.sample for one in self.taught]
        self.votes = [0.0] * len(self.anchors[0])
        self.claimed: tuple[dict[int, tuple[float, Tensor]], ...] = ({}, {})
        for sample in samples:
            self.votes[sample.nearest] += sample.weight[1]
            for claimed, shares in zip(self.claimed, sample.shares, strict=True):
                for name, share in shares.items():
                    if share >= 1e-3:
                        images, total = claimed.get(name, (0.0, torch.zeros_like(sample.z)))
                        claimed[name] = images + share, total + share * sample.z
        self.side_means = self.means_of_sides(samples)
        zero = torch.zeros_like(self.text_mean)
        self.slope, self.centre, self.level, self.rate, self.middle = zero, zero, 2.5, 0.0, 0.0
        if after >= 32:
            self.fit_direction(samples)
            self.fit_likelihood(after)

    def means_of_sides(self, samples: list[Sample]) -> list[Tensor]:
        totals = [torch.zeros_like(self.text_mean) for _ in range(2)]
        weights = [0.0, 0.0]
        for sample in samples:
            for side, weight in enumerate(sample.weight):
                totals[side] = totals[side] + weight * sample.z
                weights[side] += weight
        overall = (totals[0] + totals[1]) / max(1.0, sum(weights))
        return [(total + 8 * overall) / (weight + 8) for total, weight in zip(totals, weights, strict=True)]

    def fit_direction(self, samples: list[Sample]) -> None:
        """Fit a ridge regression of margins on images: both sides together have the same weight."""
        count = [sum(sample.weight[side] for sample in samples) for side in (0, 1)]
        self.effective = 4 / (1 / count[0] + 1 / count[1])
        row_weights = [sum(w / c / 2 for w, c in zip(sample.weight, count, strict=True)) for sample in samples]
        self.centre = sum(
            (w * s.z for w, s in zip(row_weights, samples, strict=True)), torch.zeros_like(self.text_mean)
        )
        mean = sum(w * s.margin for w, s in zip(row_weights, samples, strict=True))
        scatter = 2 / self.effective * torch.eye(len(self.centre), dtype=torch.float64)
        pull = torch.zeros_like(self.centre)
        for weight, sample in zip(row_weights, samples, strict=True):
            off = sample.z - self.centre
            scatter += weight * torch.outer(off, off)
            pull += weight * off * (sample.margin - mean)
        self.slope = torch.linalg.solve(scatter, pull)
        margins = [sum(s.weight[side] * s.margin for s in samples) for side in (0, 1)]
        self.level = (margins[0] / (count[0] + 8) + (margins[1] + 8 * 5) / (count[1] + 8)) / 2

    def fit_likelihood(self, seen: int) -> None:
        """Fit two normals of one variance to the predictions, and how far they fall into two groups."""
        usable = [one for one in self.taught if one.before >= 32]
        if not usable:
            return
        u = torch.tensor([one.sample.predicted for one in usable], dtype=torch.float64)
        weight = torch.tensor([[w * one.after / seen for w in one.sample.weight] for one in usable], dtype=u.dtype)
        total = weight.sum()
        overall = float((weight.sum(1) * u).sum() / total)
        spread = float((weight.sum(1) * u**2).sum() / total) - overall**2
        means, variances = [], []
        for side in (0, 1):
            count = float(weight[:, side].sum()) + 16
            means.append((float(weight[:, side] @ u) + 16 * overall) / count)
            square = (float(weight[:, side] @ u**2) + 16 * (max(spread, 1e-4) + overall**2)) / count
            variances.append(max(1e-4, square - means[side] ** 2))
        self.middle = sum(means) / 2
        earned = self.effective / (self.effective + 16) * math.sqrt(two_groups(u))
        self.rate = earned * (means[1] - means[0]) / (sum(variances) / 2)


def two_groups(u: Tensor) -> float:
    """Sarle's coefficient of bimodality: 0 for a normal, 1 for two points."""
    if len(u) <= 4:
        return 0.0
    off = u - u.mean()
    variance = max(float((off**2).mean()), 1e-6 * float((u**2).mean()) + 1e-4)
    skewness, kurtosis = float((off**3).mean()) / variance**1.5, float((off**4).mean()) / variance**2
    return min(1.0, max(0.0, ((skewness**2 + 1) / max(1.0, kurtosis) - 1 / 3) * 1.5))


def typical_energy(count: int, deviation: float) -> float:
    frozen = math.sqrt(2 * math.log(max(count, 2)))
    return math.log(count) + deviation**2 / 2 if deviation < frozen else frozen * deviation


def lse(values: list[float]) -> float:
    most = max(values)
    return most + math.log(sum(math.exp(value - most) for value in values))
