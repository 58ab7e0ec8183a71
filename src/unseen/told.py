"""Images of which a person has said whether they are known, and when a session looks at them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen.labels.examples import NUMBERS as EXAMPLES
from unseen.threshold.base import Corrected

FIRST_INTERVAL = 16  # images between two looks at what was told, up to 128; then a quarter to an eighth of the stream


class ToldImages(NamedTuple):
    """Images whose side is told: photos of the names, then corrected verdicts."""

    z: Float[Tensor, "n d"]
    known: Bool[Tensor, " n"]
    is_photo: Bool[Tensor, " n"]

    @classmethod
    def none(cls, dim: int) -> ToldImages:
        """No image of a width."""
        return cls(torch.zeros(0, dim), *(torch.zeros(0, dtype=torch.bool) for _ in range(2)))

    def and_photos(self, z: Float[Tensor, "m d"]) -> ToldImages:
        """These images, and photos of known names that are not among them: a calibration may be repeated."""
        if len(self.z) and len(z):
            z = z[(z.to(self.z) @ self.z.T).amax(1) < EXAMPLES.same_image]
        sure = torch.ones(len(z), dtype=torch.bool)
        return self._and(ToldImages(z, sure, sure))

    def and_corrected(self, z: Float[Tensor, "m d"], known: Bool[Tensor, " m"]) -> ToldImages:
        """These images, and some whose verdict is corrected."""
        return self._and(ToldImages(z, known, torch.zeros(len(z), dtype=torch.bool)))

    def select(self, rows: Bool[Tensor, " n"]) -> ToldImages:
        """Some of the images."""
        return ToldImages(*(part[rows] for part in self))

    def by_kind(self, margin: Float[Tensor, " n"]) -> tuple[Float[Tensor, " p"], Corrected]:
        """The margins of these images: those of the photos, and those of corrected verdicts."""
        return margin[self.is_photo], Corrected(margin[~self.is_photo], self.known[~self.is_photo])

    def _and(self, more: ToldImages) -> ToldImages:
        return ToldImages(*(torch.cat([a, b.detach().to(a)]) for a, b in zip(self, more, strict=True)))


def until_look(seen: int) -> int:
    """After how many images of a stream what was told is looked at again: a fixed count, whatever the calls."""
    interval = max(FIRST_INTERVAL, 1 << max(0, seen.bit_length() - 3))
    return interval - seen % interval
