"""Small pictures and their bytes."""

import io
from pathlib import Path
from typing import Any

from PIL import Image as Pillow
from PIL.Image import Image as Picture

RED, GREEN = (200, 30, 40), (20, 180, 60)


def encoded(picture: Picture, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def flat(colour: Any = RED, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> Picture:
    return Pillow.new(mode, size, colour)


def png(shade: int) -> bytes:
    return encoded(flat((shade, 100, 50), (4, 4)))


def centre(picture: Picture) -> Any:
    return picture.getpixel((picture.width // 2, picture.height // 2))


def save_shade(path: Path, colour: tuple[int, ...], by: int = 0, size: tuple[int, int] = (20, 16)) -> None:
    """Write a flat picture, a little lighter than `colour`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat(tuple(max(0, min(255, part + by)) for part in colour), size).save(path)
