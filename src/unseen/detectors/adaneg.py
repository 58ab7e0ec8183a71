"""AdaNeg (NeurIPS 2024): class prototypes that mix the text with the surest images seen so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.detectors.neglabel import grouped_log_odds, random_groups
from unseen.errors import SettingError
from unseen.gate import Text, read_text, settled
from unseen.odds import energy, logit

READ = 16  # samples read together: their weights over every slot of every class are held at once


class Memory(NamedTuple):
    """The images kept per class.

    A tensor [K + L, slots, d] would be ten times the label space and nearly empty: most negatives never win an image.
    So images share one pool of `slots * K + L` rows (every known name full, one image per negative on average) and the
    classes point into it. When the pool is full, a class only trades images it already has. `gram` keeps the cosines
    between a class's own slots, text first: it gives the length of any mixture of them without touching the images.
    """

    images: Float[Tensor, "M d"]
    entropy: Float[Tensor, " M"]  # how unsure the text was of each image
    rows: Int[Tensor, "C S"]  # the pool row of each class's slots, -1 while empty
    gram: Float[Tensor, "C S1 S1"]
    stored: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class AdaNeg(Detector[Memory]):
    """Keep images the frozen text is sure of, and score by NegLabel on prototypes that mix them with the text.

    The published loop writes a batch of 256 before it scores it; here each sample is written, then scored, alone.
    """

    tau: float = 0.01
    adaptive: str = "sample"  # "sample": mix a class's slots by their likeness to the sample; "task": evenly
    slots: int = 10
    sure: float = 0.75  # kept for a known name above it, for a negative below 1 - sure
    beta: float = 5.0
    lam: float = 0.1  # weight of the frozen score beside the adapted one
    groups: int = 5  # as published; one per negative where there are fewer
    seed: int = 0

    name: ClassVar[str] = "adaneg"
    needs_negatives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive(tau=self.tau, beta=self.beta)
        in_range("slots", self.slots, 1, 1000)
        in_range("sure", self.sure, 0.5, 1)
        in_range("lam", self.lam, 0, 100)
        in_range("groups", self.groups, 1, max(5, len(self.labels.negatives)))
        if self.adaptive not in ("sample", "task"):
            raise SettingError(f"expected adaptive as 'sample' or 'task', got {self.adaptive!r}; check the spelling")

    @cached_property
    def members(self) -> Int[Tensor, "G n"]:
        """Return which negatives are in which group."""
        count = len(self.labels.negatives)
        return random_groups(count, min(self.groups, count), self.seed).to(self.labels.ood_anchors.device)

    def start(self) -> Memory:
        """Return an empty memory: every prototype is its text."""
        anchors = self.labels.id_anchors
        known, classes = len(self.labels.names), len(self.labels.names) + len(self.labels.negatives)
        pool = self.slots * known + len(self.labels.negatives)
        gram = anchors.new_zeros(classes, self.slots + 1, self.slots + 1)
        gram[:, 0, 0] = 1
        return Memory(
            images=anchors.new_zeros(pool, self.labels.dim),
            entropy=anchors.new_zeros(pool),
            rows=torch.full((classes, self.slots), -1, device=anchors.device),
            gram=gram,
            stored=torch.zeros((), dtype=torch.int64, device=anchors.device),
        )

    def read(self, state: Memory, z: Float[Tensor, "T d"]) -> Reading:
        """Score a block with the memory as it is."""
        text = self._text(z)
        near = z @ state.images[: int(state.stored)].T
        parts = zip(text.split(READ), near.split(READ), strict=True)
        adapted = torch.cat([self._mixed(state, *part) for part in parts])
        return self._reading(text, adapted, torch.zeros(len(z), dtype=torch.int8, device=z.device))

    def learn(self, state: Memory, z: Float[Tensor, "T d"]) -> tuple[Reading, Memory]:
        """Keep the sure samples of a block in order and score each right after its own turn."""
        text = self._text(z)
        route = self._route(z)
        label, entropy = self._places(text, route)
        memory = Memory(*(part.clone() for part in state))
        stored = int(state.stored)
        # the columns of `near` follow the rows of the pool: a kept sample's own column takes over that of its row
        near = torch.cat([z @ state.images[:stored].T, z.new_zeros(len(z), len(z))], dim=1)
        gram = z @ z.T
        adapted = torch.empty_like(text)
        for t, taught in enumerate((route != 0).tolist()):
            slot = _slot(memory, label[t], entropy[t]) if taught else None
            if slot is not None:
                row = int(memory.rows[label[t], slot])
                memory.images[row] = z[t]
                near[:, row] = gram[:, t]
                _relate(memory, label[t], slot, text[t], near[t])
            adapted[t] = self._mixed(memory, text[t : t + 1], near[t : t + 1])[0]
        return self._reading(text, adapted, route), memory

    def _text(self, z: Tensor) -> Tensor:
        return z @ torch.cat([self.labels.id_anchors, self.labels.ood_anchors]).T

    def _route(self, z: Tensor) -> Tensor:
        bound = logit(self.sure)
        text = read_text(self.labels, z, tau=self.tau)
        trust = settled(self._trust, text, self.labels, z, tau=self.tau, bound=bound)
        return (trust > bound).to(torch.int8) - (trust < -bound).to(torch.int8)

    def _trust(self, text: Text) -> Tensor:
        return grouped_log_odds(energy(text.known), text.negative, self.members)

    def _places(self, text: Tensor, route: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class each sample would be kept for and how unsure the text is of it."""
        known = len(self.labels.names)
        sides = []
        for offset, cosine in ((0, text[:, :known]), (known, text[:, known:])):
            log_p = (cosine / self.tau).log_softmax(dim=1)
            sides.append((offset + cosine.argmax(dim=1), -(log_p.exp() * log_p).sum(dim=1)))
        (id_label, id_entropy), (ood_label, ood_entropy) = sides
        return torch.where(route > 0, id_label, ood_label), torch.where(route > 0, id_entropy, ood_entropy)

    def _mixed(self, memory: Memory, text: Float[Tensor, "n C"], near: Float[Tensor, "n M"]) -> Float[Tensor, "n C"]:
        """Return the cosine of each sample to the prototype of each class; a class without images is its text."""
        touched = (memory.rows[:, 0] >= 0).nonzero().squeeze(1)
        if not len(touched):
            return text
        rows = memory.rows[touched]
        filled = torch.cat([torch.ones_like(rows[:, :1], dtype=torch.bool), rows >= 0], dim=1)
        cosine = torch.cat([text[:, touched].unsqueeze(2), near[:, rows.clamp(min=0)]], dim=2)
        weight = ((cosine - 1) * self.beta).exp() if self.adaptive == "sample" else torch.ones_like(cosine)
        weight = weight * filled
        # |sum of weighted slots| from the cosines between the slots, because every slot is a unit vector
        length = (torch.einsum("ncs,csr->ncr", weight, memory.gram[touched]) * weight).sum(dim=2).sqrt()
        return text.index_copy(1, touched, (weight * cosine).sum(dim=2) / length)

    def _reading(self, text: Tensor, adapted: Tensor, route: Tensor) -> Reading:
        """Return the log-odds of `S(adapted) + lam * S(text)` as a weighted mean: exact where the sum itself rounds."""
        known = len(self.labels.names)
        frozen, moved = (
            grouped_log_odds(energy(part[:, :known] / self.tau), part[:, known:] / self.tau, self.members)
            for part in (text, adapted)
        )
        weight = math.log(self.lam) if self.lam else -math.inf
        accept = torch.logaddexp(logsigmoid(moved), logsigmoid(frozen) + weight)
        reject = torch.logaddexp(logsigmoid(-moved), logsigmoid(-frozen) + weight)
        return Reading.of(accept - reject, adapted[:, :known].argmax(dim=1), route)


def _slot(memory: Memory, label: Tensor, entropy: Tensor) -> int | None:
    """Open a slot for a sample of class `label`, or take that of its least sure image; None when all are surer."""
    rows = memory.rows[label]
    taken, stored = int((rows >= 0).sum()), int(memory.stored)
    if taken < len(rows) and stored < len(memory.images):
        slot, row = taken, stored
        memory.stored.add_(1)
    elif taken:
        slot = int(memory.entropy[rows[:taken]].argmax())
        row = int(rows[slot])
        if entropy >= memory.entropy[row]:
            return None
    else:
        return None
    memory.rows[label, slot] = row
    memory.entropy[row] = entropy
    return slot


def _relate(memory: Memory, label: Tensor, slot: int, text: Float[Tensor, " C"], near: Float[Tensor, " M"]) -> None:
    """Write the cosines between a newly filled slot and the text and slots of its class."""
    rows = memory.rows[label]
    cosine = torch.cat([text[label].view(1), torch.where(rows >= 0, near[rows.clamp(min=0)], 0.0)])
    memory.gram[label, slot + 1] = cosine
    memory.gram[label, :, slot + 1] = cosine
