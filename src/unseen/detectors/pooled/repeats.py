"""Which images a stream has shown before.

An image that comes again is no new evidence: learned each time, one that was once taken for unknown is taken for it
more surely every time. So it is judged like any other, and learned once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SLOTS = 1 << 16  # images that are remembered, a later one in the place of an earlier with the same slot
STEP = 1e-3  # features are rounded to it: the same image in another batch differs by less, other images by more
TAG_BITS = 27
FEATURES = 64  # numbers of an image that are looked at
MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: spreads the low bits over the high ones


class Digests(NamedTuple):
    """Where an image is remembered, and what distinguishes it there; never 0."""

    slot: Int[Tensor, " B"]
    tag: Int[Tensor, " B"]


class LearnedImages(NamedTuple):
    """The tags of images that were learned, by slot; 0 where there is none."""

    tags: Int[Tensor, " SLOTS"]

    @classmethod
    def none(cls) -> LearnedImages:
        """The memory before the first image."""
        return cls(torch.zeros(SLOTS, dtype=torch.int32))

    def are_new(self, found: Digests) -> Bool[Tensor, " B"]:
        """Which images were neither learned before nor stand earlier in the same batch."""
        same = (found.slot.unsqueeze(1) == found.slot) & (found.tag.unsqueeze(1) == found.tag)
        return (self.tags[found.slot] != found.tag) & ~same.tril(-1).any(1)

    def with_images(self, found: Digests) -> LearnedImages:
        """The memory after some images; of those with one slot the largest tag stays, on every device."""
        return LearnedImages(self.tags.scatter_reduce(0, found.slot, found.tag, "amax", include_self=False))


def new_images(
    tags: Int[Tensor, "S SLOTS"], found: Digests, index: Int[Tensor, "S n"], sizes: Sequence[int]
) -> tuple[Bool[Tensor, "S n"], Int[Tensor, "S SLOTS"]]:
    """Which images of S streams are new, and the memories after them, without waiting for a device.

    `index` says which of `found` each stream shows; an update follows after each of `sizes` images. The results are
    those of `are_new` and `with_images` at each update. Images are sorted by slot, update and tag, so that what a slot
    held before an update stands right before the images which that update puts there.
    """
    streams, count = index.shape
    if not count:
        return torch.ones_like(index, dtype=torch.bool), tags
    slot = found.slot[index] + SLOTS * torch.arange(streams, device=index.device).unsqueeze(1)
    update = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(index.device)
    key, order = ((slot << 40) | (update << TAG_BITS) | found.tag[index]).flatten().sort(stable=True)
    slot, group, tag = key >> 40, key >> TAG_BITS, key & ((1 << TAG_BITS) - 1)
    place = torch.arange(len(key), device=key.device)
    before = torch.where(differs(group), place, 0).cummax(0).values - 1  # the last image of an earlier update
    held = torch.where((before >= 0) & (slot[before] == slot), tag[before], tags.flatten()[slot])
    is_new = torch.empty_like(order, dtype=torch.bool).scatter_(0, order, (held != tag) & differs(key))
    is_last = differs(slot.flip(0)).flip(0)
    nowhere = tags.numel()
    after = torch.cat([tags.flatten(), tags.new_zeros(1)])
    after.scatter_(0, torch.where(is_last, slot, nowhere), tag.to(tags.dtype))
    return is_new.view(streams, count), after[:nowhere].view_as(tags)


def differs(values: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Which values differ from the one before."""
    return torch.cat([values.new_ones(1, dtype=torch.bool), values[1:] != values[:-1]])


def digests(z: Float[Tensor, "B d"]) -> Digests:
    """The digest of each image."""
    rounded = (z[:, :FEATURES].double() / STEP).round().long()
    mixed = (rounded * multipliers(z.device)[: rounded.shape[1]]).sum(1)  # modulo 2^64
    mixed = (mixed ^ (mixed >> 29)) * as_int64(MULTIPLIER)
    return Digests((mixed >> 20) & (SLOTS - 1), (((mixed >> 37) & 0x3FFFFFF) + 1).int())


@cache
def multipliers(device: torch.device) -> Int[Tensor, " FEATURES"]:
    """An odd number for each feature."""
    drawn = random.Random(0)  # the same numbers in every version of Python
    return torch.tensor([as_int64(drawn.getrandbits(64) | 1) for _ in range(FEATURES)], device=device)


def as_int64(number: int) -> int:
    """An integer modulo 2^64 as int64 holds it."""
    return number - 2**64 if number >= 2**63 else number
