"""Which images a stream has shown before.

An image that comes again is no new evidence: learned each time, one that was once taken for unknown is taken for it
more surely every time. So it is judged like any other, and learned once.
"""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SLOTS = 1 << 16  # images that are remembered, a later one in the place of an earlier with the same slot
STEP = 1e-3  # features are rounded to it: the same image in another batch differs by less, other images by more
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
        """Return the memory before the first image."""
        return cls(torch.zeros(SLOTS, dtype=torch.int32))

    def are_new(self, found: Digests) -> Bool[Tensor, " B"]:
        """Return which images were neither learned before nor stand earlier in the same batch."""
        same = (found.slot.unsqueeze(1) == found.slot) & (found.tag.unsqueeze(1) == found.tag)
        return (self.tags[found.slot] != found.tag) & ~same.tril(-1).any(1)

    def are_all_new(self, found: Digests) -> bool:
        """Return whether every image is new, however many there are; waits for the device once."""
        kinds = torch.stack([found.slot, found.tag.long()]).unique(dim=1).shape[1]
        return kinds == len(found.slot) and bool((self.tags[found.slot] != found.tag).all())

    def with_images(self, found: Digests) -> LearnedImages:
        """Return the memory after some images; of those with one slot the largest tag stays, on every device."""
        return LearnedImages(self.tags.scatter_reduce(0, found.slot, found.tag, "amax", include_self=False))


def digests(z: Float[Tensor, "B d"]) -> Digests:
    """Return the digest of each image."""
    rounded = (z[:, :FEATURES].double() / STEP).round().long()
    mixed = (rounded * multipliers(z.device)[: rounded.shape[1]]).sum(1)  # modulo 2^64
    mixed = (mixed ^ (mixed >> 29)) * signed(MULTIPLIER)
    return Digests((mixed >> 20) & (SLOTS - 1), (((mixed >> 37) & 0x3FFFFFF) + 1).int())


@cache
def multipliers(device: torch.device) -> Int[Tensor, " FEATURES"]:
    """Return an odd number for each feature."""
    drawn = random.Random(0)  # the same numbers in every version of Python
    return torch.tensor([signed(drawn.getrandbits(64) | 1) for _ in range(FEATURES)], device=device)


def signed(number: int) -> int:
    """Return an integer modulo 2^64 as int64 holds it."""
    return number - 2**64 if number >= 2**63 else number
