"""The images that AdaNeg keeps per class, and a block of samples while it is written into them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad


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
