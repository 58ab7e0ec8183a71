"""Methods that remember images against references sample by sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.methods import shares
from helpers.streams import space, stream, unit
from unseen.detectors import make
from unseen_bench.methods.zeroshot.adaneg import AdaNeg


class LiteralAdaNeg:
    """Memory as plain lists, one sample at a time; slot 0 is the text."""

    def __init__(self, detector: AdaNeg) -> None:
        self.detector, labels = detector, detector.labels
        self.known = len(labels.names)
        self.memory = [[(0.0, anchor)] for anchor in torch.cat([labels.id_anchors, labels.ood_anchors])]
        self.free = detector.slots * self.known + len(labels.negatives)

    def share(self, prototypes: Tensor, x: Tensor) -> Tensor:
        cosine = prototypes @ x
        return shares(cosine[: self.known], cosine[self.known :], self.detector.members, self.detector.tau)

    def prototype(self, slots: list[tuple[float, Tensor]], x: Tensor) -> Tensor:
        images = torch.stack([image for _, image in slots])
        if self.detector.adaptive == "task":
            return normalize(images.mean(0), dim=0)
        weight = torch.exp(-self.detector.beta * (1 - images @ x))
        return normalize((weight[:, None] * images).sum(0), dim=0)

    def keep(self, x: Tensor, start: int, text: Tensor) -> None:
        p = (text / self.detector.tau).softmax(0)
        entropy = -float(torch.special.xlogy(p, p).sum())
        slots = self.memory[start + int(text.argmax())]
        if len(slots) <= self.detector.slots and self.free:
            slots.append((entropy, x))
            self.free -= 1
        elif len(slots) > 1:
            worst = max(range(1, len(slots)), key=lambda i: slots[i][0])
            if entropy < slots[worst][0]:
                slots[worst] = (entropy, x)

    def observe(self, x: Tensor) -> tuple[float, int, int]:
        anchors = torch.stack([slots[0][1] for slots in self.memory])
        text = anchors @ x
        p0 = self.share(anchors, x)
        route = int(p0 > self.detector.sure) - int(p0 < 1 - self.detector.sure)
        if route > 0:
            self.keep(x, 0, text[: self.known])
        elif route < 0:
            self.keep(x, self.known, text[self.known :])
        adapted = torch.stack([self.prototype(slots, x) for slots in self.memory])
        score = self.share(adapted, x) + self.detector.lam * p0
        names = self.names(text) + self.detector.lam * self.names(adapted @ x)
        return float(score), int(names.argmax()), route

    def names(self, cosine: Tensor) -> Tensor:
        """Each known name's mean probability over the groups."""
        e, n = ((part / self.detector.tau).exp() for part in cosine.split([self.known, len(cosine) - self.known]))
        return torch.stack([e / (e.sum() + n[group].sum()) for group in self.detector.members]).mean(0)


@pytest.mark.parametrize("adaptive", ["sample", "task"])
@pytest.mark.parametrize("slots", [1, 2, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_adaneg_matches_a_sample_by_sample_reference(adaptive: str, slots: int, seed: int) -> None:
    labels = space(3, 12, 12)
    detector = AdaNeg(labels, adaptive=adaptive, slots=slots, tau=0.05)
    z = stream(labels, 90, seed=seed, noise=0.3)
    literal = LiteralAdaNeg(detector)
    expected = [literal.observe(x) for x in z]
    output, memory = detector.observe(detector.start(), z)
    score = torch.sigmoid(output.score) * (1 + detector.lam)
    torch.testing.assert_close(score, torch.tensor([row[0] for row in expected], dtype=torch.float64))
    assert output.label.tolist() == [row[1] for row in expected]
    assert output.route.tolist() == [row[2] for row in expected]
    assert (memory.rows >= 0).sum(1).tolist() == [len(kept) - 1 for kept in literal.memory]
    later = stream(labels, 20, seed=seed + 50)
    frozen = detector.score(memory, later)
    torch.testing.assert_close(frozen.score[0], detector.score(memory, later[:1]).score[0])


class LiteralTANL:
    def __init__(self, detector: Any) -> None:
        self.detector, labels = detector, detector.labels
        seed = self.activation(labels.id_anchors).mean(0)
        self.queues: list[list[Tensor]] = [[seed] * min(detector.queue, len(labels.names)), []]
        self.shares: list[float] = []
        if detector.noise is not None:
            self.queues[1] = list(self.activation(detector.noise[: detector.queue]))
            self.shares = [self.share(x) for x in (*labels.id_anchors, *detector.noise[: detector.queue])]

    def activation(self, z: Tensor) -> Tensor:
        labels = self.detector.labels
        logits = z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T / self.detector.tau
        return logits.softmax(-1)[..., len(labels.names) :]

    def share(self, x: Tensor) -> float:
        labels, tau = self.detector.labels, self.detector.tau
        means = [torch.stack(queue).mean(0) if queue else torch.zeros(len(labels.negatives)) for queue in self.queues]
        active = (means[0] - means[1]).argsort(stable=True)[: self.detector.top]
        known, negative = (labels.id_anchors @ x / tau).exp().sum(), (labels.ood_anchors @ x / tau).exp()
        prefixes = [known / (known + negative[active[: i + 1]].sum()) for i in range(len(active))]
        return float(torch.stack(prefixes).mean())

    def threshold(self) -> float:
        kept = torch.tensor(self.shares[-self.detector.window :], dtype=torch.float64)
        criteria = []
        for i in range(100):
            above, below = kept[kept >= i / 100], kept[kept < i / 100]
            if len(above) and len(below):
                within = sum(len(side) * side.var(correction=0) for side in (above, below)) / len(kept)
                criteria.append(float(within))
            else:
                criteria.append(math.inf)
        best = [i for i, value in enumerate(criteria) if value == min(criteria) or value < min(criteria) + 1e-9]
        return best[len(best) // 2] / 100

    def observe(self, x: Tensor) -> tuple[float, int]:
        share, gap = self.share(x), self.detector.gap
        self.shares.append(share)
        threshold = self.threshold()
        sides = (share > threshold + gap * (1 - threshold), share < threshold - gap * threshold)
        for queue, confident in zip(self.queues, sides, strict=True):
            if confident:
                queue.append(self.activation(x))
                del queue[: -self.detector.queue]
        return self.share(x), int(sides[0]) - int(sides[1])


@pytest.mark.parametrize(
    "options",
    [{}, {"queue": 4, "top": 6, "window": 11}, {"gap": 0.0, "top": 1}, {"noise": unit(7, 12, seed=3), "queue": 5}],
    ids=["published", "small", "one label", "noise images"],
)
def test_tanl_matches_a_sample_by_sample_reference(options: dict[str, Any]) -> None:
    labels = space(4, 15, 12)
    detector = make("tanl", labels, tau=0.05, **options)
    z = stream(labels, 50, noise=0.3)
    literal = LiteralTANL(detector)
    expected = [literal.observe(x) for x in z]
    output, _ = detector.observe(detector.start(), z)
    assert output.route.tolist() == [route for _, route in expected]
    assert {-1, 1} <= set(output.route.tolist())
    torch.testing.assert_close(torch.sigmoid(output.score), torch.tensor([share for share, _ in expected]).double())


def test_reneg_lowers_tanl_by_the_images_of_negatives_it_trusts() -> None:
    labels, tau = space(4, 15, 12), 0.05
    z = stream(labels, 120, noise=0.3)
    base = make("tanl", labels, tau=tau)
    share, _ = base.observe(base.start(), z)
    catches: dict[int, list[tuple[float, int, Tensor]]] = {}
    known: dict[int, list[Tensor]] = {}
    expected = []
    for x, score, route in zip(z, share.score, share.route.tolist(), strict=True):
        every = torch.tensor([one for some in catches.values() for one, _, _ in some])
        mass = 0.0
        for own in catches.values():
            n = len(own)
            bound = (sum(one for one, _, _ in own) + 2 * every.mean()) / (n + 2) / every.std(correction=0)
            bound -= 0.5 / math.sqrt(n + 2)
            votes = (sum(vote for _, vote, _ in own) + 1) / (n + 2)
            trust = torch.sigmoid((bound - 1) / 0.5) * torch.sigmoid(torch.tensor((votes - 0.5) / 0.1))
            likeness = normalize(torch.stack([image for _, _, image in own]).sum(0), dim=0) @ x / tau
            mass += float(trust * likeness.exp()) if n >= 2 else 0.0
        own_mass = sum(float((normalize(torch.stack(some).sum(0), dim=0) @ x / tau).exp()) for some in known.values())
        penalty = min(0.0, math.log(own_mass / mass)) if own_mass and mass else 0.0
        expected.append(0.75 * float(score) + 0.25 * penalty)
        cosine, other = labels.id_anchors @ x, labels.ood_anchors @ x
        if other.max() > cosine.max():
            margin = float(other.max() - cosine.max())
            catches.setdefault(int(other.argmax()), []).append((margin, route < 0, x))
        if (cosine / tau).softmax(0).max() >= 0.5 and route > 0:
            known.setdefault(int(cosine.argmax()), []).append(x)
    detector = make("reneg", labels, tau=tau)
    output, _ = detector.observe(detector.start(), z)
    assert bool((output.score < 0.75 * share.score).any())
    torch.testing.assert_close(output.score, torch.tensor(expected, dtype=torch.float64))
