"""Turn uploaded images and names into vectors, with an encoder that is loaded when it is first needed."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from unseen import LabelSpace, load_encoder
from unseen.encode.base import Encoder
from unseen.encode.images import Image, decode
from unseen.errors import EncoderError, ImageError, LabelError, MissingExtra, ServiceError
from unseen.serve.limits import Limits


class Sight:
    """One encoder for all streams of a service, or none."""

    def __init__(self, name: str | None, cache: Path, limits: Limits) -> None:
        self.name, self.cache, self.limits = name, cache, limits
        self._lock = threading.Lock()
        self._encoder: Encoder | None = None

    def encoder(self) -> Encoder:
        """Return the encoder; say what to do when there is none."""
        with self._lock:
            if self.name is None:
                raise EncoderError(
                    "expected an encoder for images and names, got a service without one; "
                    "start it with `unseen serve --encoder NAME`, or send features and a label space"
                )
            self._encoder = self._encoder or load_encoder(self.name)
            return self._encoder

    def space(self, names: Sequence[str], negatives: int) -> LabelSpace:
        """Return a label space of `names` with mined negatives."""
        if not 0 < len(names) <= self.limits.names:
            raise LabelError(f"expected 1 to {self.limits.names} names, got {len(names)}; pass the classes you know")
        return LabelSpace.build(names, self.encoder(), negatives=negatives, cache=self.cache)

    def images(self, files: Sequence[bytes], space: LabelSpace) -> Tensor:
        """Return one vector per image; refuse the request if one cannot be read, naming it."""
        pictures = [self._picture(number, data) for number, data in enumerate(files)]
        encoder = self.encoder()
        if encoder.dim != space.dim or space.encoder not in ("", encoder.name):
            raise ServiceError(
                422,
                f"expected images for the encoder {space.encoder or 'of this label space'} of width {space.dim}, got "
                f"{encoder.name} of width {encoder.dim}; start the service with that --encoder or send features",
            )
        return encoder.images(pictures).cpu()

    def _picture(self, number: int, data: bytes) -> Image:
        try:
            _measure(data, self.limits.pixels)
            return Image(f"image {number}", decode(data))
        except ImageError as error:
            raise ImageError(f"expected images that can be read, got image {number}: {error}; leave it out") from error


def _measure(data: bytes, most: int) -> None:
    """Refuse an image by the size its header claims, before any pixel is unpacked."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra("pillow", "encode") from error
    try:
        with PIL.Image.open(io.BytesIO(data)) as picture:
            width, height = picture.size
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"not an image ({type(error).__name__})") from error
    if width * height > most:
        raise ImageError(f"{width} x {height} pixels where {most:,} are allowed")
