"""AdaNeg (NeurIPS 2024): prototypes that mix the text with the images it was surest of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from unseen.detectors.base import Detector, DetectorOutput, above_zero, in_range, setting
from unseen.detectors.neglabel import grouped_log_odds, random_groups
from unseen.errors import check_choice
from unseen.odds import TextLogits, energy, logit
from unseen.scan.gate import exact_near_bound


class Memory(NamedTuple):
    """The images kept per class.

    A tensor [K + L, slots, d] would be ten times the label space and nearly empty: most negatives never win an image.
    So images share one pool of `slots * K + L` rows (every known name full, one image per negative on average) and the
    classes point into it. When the pool is full, a class can only replace its own images. `gram` keeps the cosines
    between a class's own slots, text first: it gives the length of any mixture of them without touching the images.
    """

    images: Float[Tensor, "M d"]
    entropy: Float[Tensor, " M"]  # how unsure the text was of each image
    rows: Int[Tensor, "C S"]  # the pool row of each class's slots, -1 while empty
    gram: Float[Tensor, "C S1 S1"]
    stored: Int[Tensor, ""]


class SlotWrite(NamedTuple):
    """A sample that becomes an image of a class, and the samples until the next such one."""

    name: int
    sources: list[int]  # of the class's images: in the pool as the block found it, followed by the block's own samples
    first: int
    last: int


class WriteTable(NamedTuple):
    """Writes as columns."""

    name: Int[Tensor, " W"]
    sources: Int[Tensor, "W S"]  # -1 where a slot is empty
    first: Int[Tensor, " W"]
    last: Int[Tensor, " W"]

    @classmethod
    def of(cls, writes: Sequence[SlotWrite], device: torch.device) -> WriteTable:
        """The columns on a device."""
        most = max(len(write.sources) for write in writes)
        rows = [[one.name, one.first, one.last, *one.sources, *[-1] * (most - len(one.sources))] for one in writes]
        columns = torch.tensor(rows, device=device)
        return cls(columns[:, 0], columns[:, 3:], columns[:, 1], columns[:, 2])

    def gram(
        self, memory: Memory, cosine: Float[Tensor, "C T"], near: Float[Tensor, "M T"]
    ) -> Float[Tensor, "W S1 S1"]:
        """The cosines between text and slots of the class of each write, after it; 0 for an empty slot."""
        size = self.sources.shape[1]
        before, is_taken = memory.gram[self.name, : size + 1, : size + 1], self.sources >= 0
        sample = self.sources - (len(near) - near.shape[1])  # that lies in a slot; below 0 where an earlier image does
        is_new, t = sample >= 0, sample.clamp(min=0)
        with_sample = near[self.sources.clamp(min=0).unsqueeze(2), t.unsqueeze(1)]
        found = torch.where(is_new.unsqueeze(2), with_sample.mT, before[:, 1:, 1:])
        gram = before.clone()
        gram[:, 1:, 1:] = torch.where(is_new.unsqueeze(1), with_sample, found)
        gram[:, 0, 1:] = gram[:, 1:, 0] = torch.where(is_new, cosine[self.name.unsqueeze(1), t], before[:, 0, 1:])
        filled = pad(is_taken, (1, 0), value=True)
        return gram * (filled.unsqueeze(1) & filled.unsqueeze(2))


class MemoryWriter:
    """A memory while a block is written into it, as plain lists: tensors are slow element by element."""

    def __init__(self, memory: Memory, names: Iterable[int]) -> None:
        self.memory, self.stored_before, self.stored = memory, int(memory.stored), int(memory.stored)
        self.names = sorted(names)
        table, self.gram = memory.rows[self.names].tolist(), memory.gram[self.names]
        self.rows = {name: [row for row in rows if row >= 0] for name, rows in zip(self.names, table, strict=True)}
        used = [row for rows in self.rows.values() for row in rows]
        self.entropy = dict(zip(used, memory.entropy[used].tolist(), strict=True))
        self.block_rows: dict[int, int] = {}  # pool row -> the sample of this block that lies there now

    def keep(self, samples: Iterable[tuple[int, int, float]], stop: int) -> list[SlotWrite]:
        """The writes of samples (time, class, entropy) in order, each up to the next one of its class."""
        writes = []
        for t, name, entropy in samples:
            if self._keeps(t, name, entropy):
                writes.append(SlotWrite(name, self._sources(name), t, stop))
        following: dict[int, int] = {}
        for i, write in reversed(list(enumerate(writes))):
            writes[i] = write._replace(last=following.get(write.name, stop))
            following[write.name] = write.first
        return writes

    def _keeps(self, t: int, name: int, entropy: float) -> bool:
        """Whether sample `t` gets a slot of its class: a new one, or that of the least sure image if it is surer."""
        rows = self.rows[name]
        if len(rows) < self.memory.rows.shape[1] and self.stored < len(self.memory.images):
            slot = len(rows)
            rows.append(self.stored)
            self.stored += 1
        elif rows:
            slot = max(range(len(rows)), key=lambda i: self.entropy[rows[i]])
            if entropy >= self.entropy[rows[slot]]:
                return False
        else:
            return False
        self.entropy[rows[slot]], self.block_rows[rows[slot]] = entropy, t
        return True

    def _sources(self, name: int) -> list[int]:
        return [self.stored_before + self.block_rows[row] if row in self.block_rows else row for row in self.rows[name]]

    def keep_gram(self, writes: Sequence[SlotWrite], gram: Float[Tensor, "W S1 S1"]) -> None:
        """Keep the cosines after the last write of each class, given those after each write."""
        final = {write.name: row for row, write in enumerate(writes)}
        place = [i for i, name in enumerate(self.names) if name in final]
        self.gram[place, : gram.shape[1], : gram.shape[1]] = gram[[final[self.names[i]] for i in place]]

    def finish(self, z: Float[Tensor, "T d"]) -> Memory:
        """The memory with the images, entropies and slots of this block written into it."""
        if not self.block_rows:
            return self.memory
        images, entropy, table, gram, stored = (part.clone() for part in self.memory)
        images[list(self.block_rows)] = z[list(self.block_rows.values())]
        entropy[list(self.block_rows)] = entropy.new_tensor([self.entropy[row] for row in self.block_rows])
        padded = [rows + [-1] * (table.shape[1] - len(rows)) for rows in self.rows.values()]
        table[self.names], gram[self.names] = table.new_tensor(padded), self.gram
        return Memory(images, entropy, table, gram, torch.full_like(stored, self.stored))


@dataclass(frozen=True)
class ReadNumbers:
    """How much is read at once: numbers that stay in a cache."""

    cache: int = 1 << 17  # numbers of all slots of some classes that stay in the cache of a core
    gpu_cache: int = 1 << 24  # numbers of all slots of some classes that are read at once on a GPU
    pairs: int = 1 << 18  # pairs of a changed class and a sample that are read again at once


NUMBERS = ReadNumbers()


@dataclass(frozen=True, eq=False)
class AdaNeg(Detector[Memory]):
    """Keep images the frozen text is sure of, and score by NegLabel on prototypes that mix them with the text.

    The published loop writes a batch of 256 before it scores it; here each sample is written, then scored, by itself.
    """

    tau: float = above_zero(0.01)
    adaptive: str = "sample"  # "sample": mix a class's slots by their likeness to the sample; "task": evenly
    slots: int = setting(10, 1, 1000)
    sure: float = setting(0.75, 0.5, 1)  # kept for a known name above it, for a negative below 1 - sure
    beta: float = above_zero(5.0)
    lam: float = setting(0.1, 0, 100)  # weight of the frozen score beside the adapted one
    groups: int = 5  # as published; one per negative where there are fewer
    seed: int = 0

    name: ClassVar[str] = "adaneg"
    needs_negatives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("groups", self.groups, 1, max(5, len(self.labels.negatives)))
        check_choice("adaptive", self.adaptive, ("sample", "task"))

    @cached_property
    def members(self) -> Int[Tensor, "G n"]:
        """Which negatives are in which group."""
        return random_groups(self.labels, self.groups, self.seed)

    def start(self) -> Memory:
        """An empty memory: every prototype is its text."""
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

    def read(self, state: Memory, z: Float[Tensor, "T d"]) -> DetectorOutput:
        cosine = self._cosine(z)
        adapted = self._adapted_cosines(state, cosine, state.images[: int(state.stored)] @ z.T)
        route = torch.zeros(len(z), dtype=torch.int8, device=z.device)
        return self._reading(cosine, self._trust(self._logits(cosine)), adapted, route)

    def learn(self, state: Memory, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Memory]:
        """Keep the sure samples of a block in order and score each right after its own update.

        A kept sample changes the prototype of one class, for itself and later samples. What is kept follows from the
        frozen text. So the block is read once with the memory at its start, and each changed class again from the
        sample that changed it to the one that changes it next.
        """
        cosine = self._cosine(z)
        trust, route, label, entropy = self._route(cosine, z)
        near = torch.cat([state.images[: int(state.stored)] @ z.T, z @ z.T])
        adapted = self._adapted_cosines(state, cosine, near)
        taught = route.nonzero().squeeze(1).tolist()
        writer = MemoryWriter(state, {label[t] for t in taught})
        writes = writer.keep([(t, label[t], entropy[t]) for t in taught], len(z))
        self._rewrite(adapted, writes, writer, cosine, near)
        return self._reading(cosine, trust, adapted, route), writer.finish(z)

    def _rewrite(
        self,
        adapted: Float[Tensor, "C T"],
        writes: Sequence[SlotWrite],
        writer: MemoryWriter,
        cosine: Float[Tensor, "C T"],
        near: Float[Tensor, "M T"],
    ) -> None:
        """Put the cosines to each changed prototype into `adapted`, for all writes at once."""
        if not writes:
            return
        table = WriteTable.of(writes, adapted.device)
        gram = table.gram(writer.memory, cosine, near)
        writer.keep_gram(writes, gram)
        count = table.last - table.first
        write = torch.repeat_interleave(count)  # one entry for each sample that a write changes
        sample = torch.arange(len(write), device=count.device) + (table.first + count - count.cumsum(0))[write]
        for one, t in zip(write.split(NUMBERS.pairs), sample.split(NUMBERS.pairs), strict=True):
            name, sources = table.name[one], table.sources[one]
            slots = torch.cat([cosine[name, t].unsqueeze(1), near[sources.clamp(min=0), t.unsqueeze(1)]], dim=1)
            is_empty = pad(sources < 0, (1, 0))
            adapted[name, t] = self._mixture(slots.unsqueeze(2), gram[one], is_empty.unsqueeze(2)).squeeze(1)

    def _cosine(self, z: Tensor) -> Float[Tensor, "C T"]:
        return torch.cat([self.labels.id_anchors, self.labels.ood_anchors]) @ z.T

    def _logits(self, cosine: Float[Tensor, "C T"]) -> TextLogits:
        known, negative = cosine.T.div(self.tau).split([len(self.labels.names), len(self.labels.negatives)], dim=1)
        return TextLogits(known.contiguous(), negative.contiguous())

    def _route(self, cosine: Float[Tensor, "C T"], z: Tensor) -> tuple[Tensor, Tensor, list[int], list[float]]:
        """Each sample's trust, its side, the class it would be kept for and how unsure the text is of it."""
        bound, text = logit(self.sure), self._logits(cosine)
        trust = exact_near_bound(self._trust(text), self._trust, self.labels, z, tau=self.tau, bound=bound)
        route = (trust > bound).to(torch.int8) - (trust < -bound).to(torch.int8)
        sides = []
        for offset, side in ((0, text.known), (len(self.labels.names), text.negative)):
            log_p = side.log_softmax(dim=1)
            sides.append((offset + side.argmax(dim=1), -(log_p.exp() * log_p).sum(dim=1)))
        label, entropy = (torch.where(route > 0, one, other) for one, other in zip(*sides, strict=True))
        return trust.to(z.dtype), route, label.tolist(), entropy.tolist()

    def _trust(self, text: TextLogits) -> Tensor:
        return grouped_log_odds(energy(text.known), text.negative, self.members)

    def _adapted_cosines(
        self, memory: Memory, cosine: Float[Tensor, "C T"], near: Float[Tensor, "M T"]
    ) -> Float[Tensor, "C T"]:
        """The cosine of each sample to the prototype of each class; a class without images is its text."""
        adapted, taken = cosine.clone(), (memory.rows >= 0).sum(dim=1)
        for count in range(1, int(taken.max()) + 1):  # classes with equally many images need no empty slots
            size = max(
                1, (NUMBERS.gpu_cache if cosine.is_cuda else NUMBERS.cache) // max(1, (count + 1) * cosine.shape[1])
            )
            for names in (taken == count).nonzero().squeeze(1).split(size):
                slots = torch.cat([cosine[names, None], near[memory.rows[names, :count]]], dim=1)
                adapted[names] = self._mixture(slots, memory.gram[names, : count + 1, : count + 1])
        return adapted

    def _mixture(
        self,
        slots: Float[Tensor, "c S1 n"],
        gram: Float[Tensor, "c S1 S1"],
        is_empty: Bool[Tensor, "c S1 1"] | None = None,
    ) -> Float[Tensor, "c n"]:
        """The cosine to each class's mixture out of those to its slots, text first."""
        weight = ((slots - 1) * self.beta).exp() if self.adaptive == "sample" else torch.ones_like(slots)
        weight = weight if is_empty is None else weight.masked_fill(is_empty, 0)
        # |sum of weighted slots| from the cosines between the slots, because every slot is a unit vector
        length = (weight * (gram @ weight)).sum(dim=1).sqrt()
        return (weight * slots).sum(dim=1) / length

    def _reading(
        self, cosine: Float[Tensor, "C T"], frozen: Float[Tensor, " T"], adapted: Float[Tensor, "C T"], route: Tensor
    ) -> DetectorOutput:
        """The log-odds of `S(adapted) + lam * S(text)` as a weighted mean: exact where the sum itself rounds.

        The name is the best of `p(text) + lam * p(adapted)`, as published: there the text weighs more.
        """
        moved = self._trust(self._logits(adapted))
        weight = math.log(self.lam) if self.lam else -math.inf
        accept = torch.logaddexp(logsigmoid(moved), logsigmoid(frozen) + weight)
        reject = torch.logaddexp(logsigmoid(-moved), logsigmoid(-frozen) + weight)
        text = self._log_share(cosine, frozen)
        label = torch.logaddexp(text, self._log_share(adapted, moved) + weight).argmax(dim=0)
        return DetectorOutput.of(accept - reject, label, route)

    def _log_share(self, cosine: Float[Tensor, "C T"], trust: Float[Tensor, " T"]) -> Float[Tensor, "K T"]:
        """The log of each known name's mean probability over the groups."""
        return (cosine[: len(self.labels.names)] / self.tau).log_softmax(dim=0) + logsigmoid(trust)
