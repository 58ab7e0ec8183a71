"""Bytes in, an upright RGB picture out; what cannot be decoded is refused with a reason."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import ImageError, MissingExtra, import_extra
from unseen.storage.remote import Location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

COMMON = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
IMAGE_SUFFIXES = frozenset(COMMON | HEIF_SUFFIXES | {".ppm", ".pgm", ".pbm", ".jp2", ".avif"})
# beside images in many collections, and never images: not opened to look
TEXT_SUFFIXES = frozenset({".txt", ".json", ".csv", ".xml", ".yaml", ".yml", ".md", ".html", ".log", ".py", ".lst"})
HEAD = 16  # bytes that tell
JPEG_START = b"\xff\xd8\xff"
STARTS = (JPEG_START, b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")

# what is read: Pillow knows dozens more, some of which start other programs or hide a picture in a picture
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")


@dataclass(frozen=True)
class Bounds:
    """What a file may ask for before any of its pixels is decoded."""

    max_pixels: int = 89_478_485  # where Pillow begins to warn of a decompression bomb
    max_reduced: int = 1 << 30  # of a JPEG that is read at a smaller scale, row by row
    max_aspect: int = 100  # of the longer side to the shorter
    max_scans: int = 100  # of a JPEG: a few bytes that cost a pass over all its pixels; usual are 1 to 12
    plain_bytes: int = 1 << 20  # of a PPM in text, which Pillow parses in Python: no other thread runs meanwhile
    band_pixels: int = 1 << 22  # converted at a time, so that a large picture is not held in four modes at once
    tile_pixels: int = 1 << 22  # of a TIFF's tile, which may be larger than the picture


BOUNDS = Bounds()


# in a JPEG: the marker of a segment, of its end or of a scan; not the ones that stand inside compressed data
MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
END_OF_IMAGE, START_OF_SCAN = b"\xd9", b"\xda"
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of a TIFF


def is_heif(head: bytes) -> bool:
    """Whether a file that begins like this is HEIF (photos of phones), which Pillow cannot read by itself."""
    return head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS


def is_image(head: bytes) -> bool:
    """Whether a file that begins like this is an image.

    >>> is_image(b"GIF89a"), is_image(b"RIFF\\x10\\0\\0\\0WEBPVP8 "), is_image(b"hello")
    (True, True, False)
    """
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    is_bitmap = head[:2] == b"BM" and head[6:10] == bytes(4)
    is_avif = head[4:12] in (b"ftypavif", b"ftypavis")
    return head.startswith(STARTS) or is_webp or is_bitmap or is_avif or is_heif(head)


def is_image_file(path: Path) -> bool:
    """Whether a file is an image by its name, or by its content if its name says nothing."""
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES or suffix in TEXT_SUFFIXES:
        return suffix in IMAGE_SUFFIXES
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with path.open("rb") as file:
            return is_image(file.read(HEAD))
    except OSError:
        return False


def read_file(path: Location | str) -> bytes:
    """What is in a file; one that cannot be read is an `ImageError`. A local one takes few calls."""
    try:
        if not isinstance(path, str | Path):
            return path.read_bytes()
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise ImageError("not a file: a pipe, socket or device")  # reading it could wait for ever
        with open(path, "rb", buffering=0) as file:
            data = file.read(found.st_size + 1) or b""
            # the end, and no second call to see it, unless it grew
            return data if len(data) == found.st_size else data + file.readall()
    except OSError as error:
        raise ImageError(f"cannot be opened: {error.strerror or error}") from error


def decode(data: bytes, *, most: int | None = None, formats: Sequence[str] = FORMATS, least: int = 0) -> Picture:
    """The picture in `data`: first frame, upright, RGB, transparency on white, 16 bits scaled to 8.

    A picture whose header claims more than `most` pixels (by default `BOUNDS` says) or is of another format is refused
    before it is unpacked; by default, a larger JPEG is read at the largest of its scales that is small enough. With
    `least`, a JPEG is read at the smallest of its scales (1/2, 1/4, 1/8) whose shorter side has so many pixels: for an
    encoder, which resizes it anyway, a quarter of the work for a photo of a phone.
    """
    operations = import_extra("PIL.ImageOps", "encode")
    with open_header(data, most, formats) as picture:
        if least:
            picture.draft(None, (least, least))
        picture.load()
        operations.exif_transpose(picture, in_place=True)
        return _in_bands(picture)


def in_rgb(picture: Picture) -> Picture:
    """An opened picture upright and in RGB, as `decode` does; the one that was passed stays as it is."""
    from PIL import ImageOps

    check_size(picture.width, picture.height)
    try:
        return _in_bands(ImageOps.exif_transpose(picture))
    except (OSError, SyntaxError) as error:  # its file is read only now
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


@contextmanager
def open_header(data: bytes, most: int | None, formats: Sequence[str]) -> Iterator[Picture]:
    """Yield a picture of which only the header is read; any failure, then or later, is an ImageError."""
    pillow = import_extra("PIL.Image", "encode")
    if not data:
        raise ImageError("empty file")
    if is_heif(data[:HEAD]):
        formats = (*formats, _heif_format())
    try:
        with _opened(data, formats, reduces=most is None) as picture:
            check_size(picture.width, picture.height, most)
            _check_parts(picture, data)
            yield picture
    except ImageError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"too large: more than {BOUNDS.max_pixels:,} pixels") from error
    except pillow.UnidentifiedImageError as error:
        raise ImageError("not an image of a supported format") from error
    except MemoryError as error:
        raise ImageError("too large: not enough memory to unpack it") from error
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


def _opened(data: bytes, formats: Sequence[str], *, reduces: bool) -> Picture:
    """A picture of which only the header is read; a JPEG that is too large is set to be read at a smaller scale."""
    pillow = import_extra("PIL.Image", "encode")
    if not (reduces and "JPEG" in formats and data.startswith(JPEG_START)):
        return pillow.open(io.BytesIO(data), formats=formats)
    from PIL import JpegImagePlugin

    picture: Picture = JpegImagePlugin.JpegImageFile(io.BytesIO(data))  # past Pillow's limit, which knows no scales
    width, height = picture.size
    is_unrolled = "progressive" not in picture.info  # else all of it is held at once, whatever the scale
    if BOUNDS.max_pixels < width * height <= BOUNDS.max_reduced and is_unrolled:
        scale = next(scale for scale in (2, 4, 8) if width * height <= BOUNDS.max_pixels * scale * scale)
        picture.draft(None, (width // scale, height // scale))
    return picture


@cache
def _heif_format() -> str:
    """Pillow's name of HEIF, which a package of its own teaches it."""
    try:
        import_extra("pillow_heif", "heic").register_heif_opener()
    except MissingExtra as error:
        raise ImageError(f"HEIC image: {error}") from error
    return "HEIF"


def check_size(width: int, height: int, most: int | None = None) -> None:
    """Refuse a picture of this size that is too large or too narrow."""
    most = BOUNDS.max_pixels if most is None else most
    if width * height > most:
        raise ImageError(f"too large: {width} x {height} pixels, at most {most:,} allowed")
    if max(width, height) > BOUNDS.max_aspect * min(width, height):
        raise ImageError(f"too narrow: {width} x {height} pixels, at most {BOUNDS.max_aspect} : 1 allowed")


def _check_parts(picture: Picture, data: bytes) -> None:
    """Refuse a picture whose parts exceed what its size implies: tiles larger than any picture, scans without end."""
    if picture.format == "TIFF":
        width, length = (int(picture.tag_v2.get(tag, 0)) for tag in (TILE_WIDTH, TILE_LENGTH))  # type: ignore[attr-defined]
        if width * length > max(BOUNDS.tile_pixels, picture.width * picture.height):
            raise ImageError(f"too large: tiles of {width} x {length} pixels in {picture.width} x {picture.height}")
    elif picture.format == "PPM" and data[1:2] in b"123" and len(data) > BOUNDS.plain_bytes:
        raise ImageError(f"too large: more than {BOUNDS.plain_bytes:,} bytes of numbers as text; save it as binary PPM")
    elif picture.format in ("JPEG", "MPO") and count_scans(data, BOUNDS.max_scans + 1) > BOUNDS.max_scans:
        raise ImageError(f"too many scans: at most {BOUNDS.max_scans} allowed")


def count_scans(data: bytes, most: int) -> int:
    """How many scans a JPEG has, `most` where it has more."""
    scans, at = 0, 2
    while scans < most and (found := MARKER.search(data, at)) and found[1] != END_OF_IMAGE:
        scans += found[1] == START_OF_SCAN
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
    return scans


def _in_bands(picture: Picture) -> Picture:
    """A picture in RGB; a large one is converted some rows at a time."""
    width, height = picture.size
    rows = max(1, BOUNDS.band_pixels // width)
    if rows >= height:
        return _rgb(picture)
    whole: Picture = import_extra("PIL.Image", "encode").new("RGB", picture.size)
    for top in range(0, height, rows):
        band = (0, top, width, min(top + rows, height))
        whole.paste(_rgb(picture.crop(band)), band)
    return whole


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
    values = np.asarray(picture)
    if values.min() < 0 or values.max() > 65535:
        raise ImageError(f"32-bit pixels have no agreed range (here {values.min()} to {values.max()}); save it with 16")
    scaled: Picture = import_extra("PIL.Image", "encode").fromarray(
        ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    )
    return scaled


def reduced(picture: Picture, side: int) -> Picture:
    """A copy of a picture whose longer side has at most `side` pixels."""
    small = picture.copy()
    small.thumbnail((side, side))
    return small


def jpeg_thumbnail(picture: Picture, side: int, *, quality: int = 80) -> bytes:
    """A JPEG of a picture whose longer side has at most `side` pixels."""
    buffer = io.BytesIO()
    reduced(picture, side).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
