"""Random views of images: crops, each encoded like an image (InfoOOD)."""

from __future__ import annotations

import hashlib
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from unseen.encoders import Encoder
from unseen.errors import EncoderError
from unseen.images import Image

VIEWS = 8  # per image; the published number is not known
LEAST_AREA = 0.55  # share of the image that a crop has at least


class RandomView:
    """An encoder of one random crop of each image; the crop depends on the pixels and on `number` only."""

    def __init__(self, encoder: Encoder, number: int) -> None:
        self.encoder, self.number = encoder, number
        self.name, self.dim = f"view {number} by {encoder.name}", encoder.dim
        described = f"{encoder.fingerprint} crop of {LEAST_AREA} to 1, number {number}"
        self.fingerprint = hashlib.sha256(described.encode()).hexdigest()

    def images(self, batch: Sequence[Image]) -> Float[Tensor, "n d"]:
        """One unit vector per image."""
        return self.encoder.images([random_crop(image, self.number) for image in batch])

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Refuse: there are no views of texts."""
        raise EncoderError(f"expected images for {self.name}, got texts; use the encoder itself")


def random_crop(image: Image, number: int) -> Image:
    """A crop of the image's own proportions, with LEAST_AREA to all of its area, anywhere in it."""
    draw = random.Random(zlib.crc32(image.pixels.tobytes()) + 2**32 * number)
    share = math.sqrt(draw.uniform(LEAST_AREA, 1))
    width, height = (max(1, round(share * side)) for side in image.pixels.size)
    left, top = draw.randint(0, image.pixels.width - width), draw.randint(0, image.pixels.height - height)
    return replace(image, pixels=image.pixels.crop((left, top, left + width, top + height)))
