"""The protocols that every encoder follows."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from unseen.images import Image
from unseen.images.inputs import ImageBatch
from unseen.images.regions import Box


class Encoder(Protocol):
    """Images and texts in, unit float32 vectors of one space out.

    `fingerprint` is the identity of that space: weights and preprocessing, not the arithmetic they run in.
    """

    name: str
    dim: int

    @property
    def fingerprint(self) -> str:
        """A hash that two encoders share only if their vectors can be compared."""

    def images(self, batch: Sequence[Image]) -> Float[Tensor, "n d"]:
        """One vector per image."""

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One vector per text."""


class SplitEncoder(Encoder, Protocol):
    """An encoder whose work can be shared out: pixels are made where processors are, vectors where the weights are.

    `images(batch)` is `vectors(prepare(batch))` up to how a batch is divided.
    """

    def images(self, batch: ImageBatch) -> Float[Tensor, "n d"]:
        """One vector per image, in any form that `images.inputs.as_images` takes."""

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """What makes pixels out of pictures: small enough to send to a worker, and without the weights."""

    @property
    def side(self) -> int:
        """Pixels of the side to which `prepare` resizes, so that a JPEG need not be read whole; 0 if not known."""

    def vectors(self, pixels: Tensor) -> Float[Tensor, "n d"]:
        """One unit vector per image whose pixels `prepare` made."""


@runtime_checkable
class PatchEncoder(Encoder, Protocol):
    """An encoder that also returns one vector per patch of an image (GL-MCM)."""

    def patches(self, batch: Sequence[Image]) -> Float[Tensor, "n p d"]:
        """One vector per image patch."""


@runtime_checkable
class WindowEncoder(Encoder, Protocol):
    """An encoder that returns vectors of windows of an image without encoding each."""

    def windows(self, batch: Sequence[Image], boxes: Sequence[Box]) -> Float[Tensor, "n w d"]:
        """One vector per window, in shares of width and height."""
