"""The numbers that groups of a stream's kept samples were given, as the journal holds them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from unseen.discover.groups import with_numbers
from unseen.reservoir import Reservoir
from unseen.session import Session


class GroupNumbers(NamedTuple):
    """The group of each kept sample that has one, by its place since the last reset, and the next free number."""

    next_group: int
    of_place: dict[int, int]

    @classmethod
    def of(cls, reservoir: Reservoir) -> GroupNumbers:
        """The numbers that the images of a reservoir have."""
        images = reservoir.images
        pairs = zip(images.place.tolist(), images.group.tolist(), strict=True)
        return cls(reservoir.next_group, {place: number for place, number in pairs if number})

    def given_to(self, session: Session) -> Session | None:
        """The session with its kept samples so numbered, None where they are already."""
        before = session.reservoir
        after = with_numbers(before, self.of_place, self.next_group)
        if before.next_group == after.next_group and torch.equal(before.images.group, after.images.group):
            return None
        return session.at(session.snapshot, reservoir=after)

    def to_bytes(self) -> bytes:
        """The numbers as bytes."""
        return np.array([self.next_group, *self.of_place, *self.of_place.values()], "<i8").tobytes()

    @classmethod
    def of_bytes(cls, data: bytes) -> GroupNumbers:
        """The numbers that `to_bytes` wrote."""
        next_group, *rest = np.frombuffer(data, "<i8").tolist()
        half = len(rest) // 2
        return cls(next_group, dict(zip(rest[:half], rest[half:], strict=True)))
