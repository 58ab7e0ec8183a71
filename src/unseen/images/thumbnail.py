"""Small copies of images for pages and reports."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def jpeg_thumbnail(picture: Picture, side: int, *, quality: int = 80) -> bytes:
    """Return a JPEG of a picture whose longer side has at most `side` pixels."""
    small = picture.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
