"""Turn uploaded images and names into vectors, with an encoder that is loaded when it is first needed."""

from __future__ import annotations

import importlib
import io
import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from unseen import LabelSpace
from unseen.errors import EncoderError, ImageError, LabelError, MissingExtra, ServiceError, UnseenError
from unseen.serve.limits import Limits


class Sight:
    """One encoder for all streams of a service, or none."""

    def __init__(self, name: str | None, limits: Limits) -> None:
        self.name, self.limits = name, limits
        self._lock = threading.Lock()
        self._encoder: Any = None

    def encoder(self) -> Any:
        """Return the encoder; say what to do when there is none."""
        with self._lock:
            if self._encoder is None:
                self._encoder = self._load()
            return self._encoder

    def space(self, names: Sequence[str], negatives: int) -> LabelSpace:
        """Return a label space of `names` with mined negatives."""
        if not 0 < len(names) <= self.limits.names:
            raise LabelError(f"expected 1 to {self.limits.names} names, got {len(names)}; pass the classes you know")
        build = getattr(LabelSpace, "build", None)
        if build is None:
            raise _no_encoder("this version cannot mine negatives")
        space: LabelSpace = build(names, self.encoder(), negatives=negatives)
        return space

    def images(self, files: Sequence[bytes], space: LabelSpace) -> Tensor:
        """Return one vector per image; refuse the request if one cannot be read, naming it."""
        pictures = [self._picture(number, data) for number, data in enumerate(files)]
        encoder = self.encoder()
        if encoder.dim != space.dim:
            raise ServiceError(
                422,
                f"expected images for an encoder of width {space.dim} ({space.encoder or 'unnamed'}), got "
                f"{encoder.name} of width {encoder.dim}; start the service with that --encoder or send features",
            )
        vectors: Tensor = encoder.images(pictures)
        return vectors

    def _picture(self, number: int, data: bytes) -> Any:
        self._measured(number, data)
        reader = importlib.import_module("unseen.encode.images")
        try:
            return reader.Image(f"image {number}", reader.decode(data))
        except ImageError as error:
            raise ImageError(f"expected images that can be read, got image {number}: {error}; leave it out") from error

    def _measured(self, number: int, data: bytes) -> None:
        """Refuse an image by the size its header claims, before any pixel is unpacked."""
        try:
            import PIL.Image
        except ImportError as error:
            raise MissingExtra("pillow", "encode") from error
        try:
            with PIL.Image.open(io.BytesIO(data)) as picture:
                width, height = picture.size
        except PIL.Image.DecompressionBombError as error:
            raise ImageError(f"expected a sane image, got image {number}: {error}; scale it down") from error
        except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
            raise ImageError(
                f"expected images that can be read, got image {number}: {type(error).__name__}; leave it out"
            ) from error
        if width * height > self.limits.pixels:
            raise ImageError(
                f"expected at most {self.limits.pixels:,} pixels, got {width} x {height} in image {number}; "
                "scale it down"
            )

    def _load(self) -> Any:
        if self.name is None:
            raise _no_encoder("the service was started with --encoder none")
        try:
            return importlib.import_module("unseen.encode.base").load_encoder(self.name)
        except ModuleNotFoundError as error:
            raise _no_encoder(str(error)) from error
        except UnseenError as error:
            raise EncoderError(f"expected the encoder {self.name!r}, got none: {error}") from error


def _no_encoder(why: str) -> EncoderError:
    return EncoderError(
        f"expected an encoder for images and names, got none ({why}); "
        "start with `unseen serve --encoder NAME`, or send features and a label space"
    )
