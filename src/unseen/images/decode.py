"""Bytes in, an upright RGB picture out; what cannot be decoded is refused with a reason."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from unseen.errors import ImageError, import_extra
from unseen.storage.remote import Location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb


def decode_file(path: Location) -> Picture:
    """Return the picture in a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"cannot be opened: {error.strerror or error}") from error
    return decode(data)


def decode(data: bytes) -> Picture:
    """Return the picture in `data`: first frame, upright, RGB, transparency on white, 16 bits scaled to 8."""
    pillow = import_extra("PIL.Image", "encode")
    if not data:
        raise ImageError("empty file")
    try:
        with pillow.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ImageError(
                    f"too large: {picture.width} x {picture.height} pixels, at most {MAX_PIXELS:,} allowed"
                )
            picture.load()
            return _rgb(_upright(picture))
    except ImageError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"too large: {error}") from error
    except pillow.UnidentifiedImageError as error:
        raise ImageError("not an image Pillow can read") from error
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


def _rgb(picture: Picture) -> Picture:
    if picture.mode.startswith("I"):
        return _from_sixteen_bits(picture).convert("RGB")
    if picture.mode == "F":
        raise ImageError("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        pillow = import_extra("PIL.Image", "encode")
        flat: Picture = pillow.alpha_composite(pillow.new("RGBA", layer.size, "white"), layer)
        return flat.convert("RGB")
    return picture.convert("RGB")


def _from_sixteen_bits(picture: Picture) -> Picture:
    import numpy as np

    # Pillow's own conversion clips at 255, which turns most 16-bit pictures white
    values = np.asarray(picture).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ImageError(f"32-bit pixels have no agreed range (here {values.min()} to {values.max()}); save it with 16")
    scaled: Picture = import_extra("PIL.Image", "encode").fromarray(((values + 128) // 257).astype(np.uint8))
    return scaled


def _upright(picture: Picture) -> Picture:
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)
