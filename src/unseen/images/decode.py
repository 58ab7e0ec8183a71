"""Bytes in, an upright RGB picture out; what cannot be decoded is refused with a reason."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import ImageError, MissingExtra, import_extra
from unseen.images.files import read_local
from unseen.images.kinds import HEAD, is_heif
from unseen.storage.remote import Location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

# what is read: Pillow knows dozens more, some of which start other programs or hide a picture in a picture
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
# whose decoders unpack no more than the header claims; an AVIF of 64 x 64 pixels may unpack to 16,384 x 16,384
BOUNDED_FORMATS = tuple(name for name in FORMATS if name != "AVIF")
MAX_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb
MAX_ASPECT = 100  # of the longer side to the shorter
MAX_SCANS = 100  # of a JPEG: a few bytes that cost a pass over all its pixels; usual are 1 to 12
PLAIN_BYTES = 1 << 20  # of a PPM in text, which Pillow parses in Python: no other thread runs meanwhile
BAND_PIXELS = 1 << 22  # converted at a time, so that a large picture is not held in four modes at once


# in a JPEG: the marker of a segment, of its end or of a scan; not the ones that stand inside compressed data
MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
TILE_PIXELS = 1 << 22  # of a TIFF's tile, which may be larger than the picture
END_OF_IMAGE, START_OF_SCAN = b"\xd9", b"\xda"
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of a TIFF


def decode_file(path: Location) -> Picture:
    """The picture in a file."""
    return decode(read_file(path))


def read_file(path: Location) -> bytes:
    """What is in a file; one that cannot be read is an `ImageError`."""
    if isinstance(path, Path):
        return read_local(str(path))
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"cannot be opened: {error.strerror or error}") from error


def decode(data: bytes, *, most: int | None = None, formats: Sequence[str] = FORMATS) -> Picture:
    """The picture in `data`: first frame, upright, RGB, transparency on white, 16 bits scaled to 8.

    A picture whose header claims more than `most` pixels (by default MAX_PIXELS) or is of another format is refused
    before it is unpacked.
    """
    with _open_header(data, most, formats) as picture:
        picture.load()
        _upright(picture)
        return _in_bands(picture)


def in_rgb(picture: Picture) -> Picture:
    """An opened picture upright and in RGB, as `decode` does; the one that was passed stays as it is."""
    from PIL import ImageOps

    _check_size(picture.width, picture.height, MAX_PIXELS)
    try:
        return _in_bands(ImageOps.exif_transpose(picture))
    except (OSError, SyntaxError) as error:  # its file is read only now
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


def claimed_pixels(data: bytes, *, most: int | None = None, formats: Sequence[str] = FORMATS) -> int:
    """How many pixels the header of a picture claims; refuse what `decode` would refuse by its header."""
    with _open_header(data, most, formats) as picture:
        return picture.width * picture.height


@contextmanager
def _open_header(data: bytes, most: int | None, formats: Sequence[str]) -> Iterator[Picture]:
    """Yield a picture of which only the header is read; any failure, then or later, is an ImageError."""
    pillow = import_extra("PIL.Image", "encode")
    if not data:
        raise ImageError("empty file")
    if is_heif(data[:HEAD]):
        formats = (*formats, _heif_format())
    try:
        with pillow.open(io.BytesIO(data), formats=formats) as picture:
            _check_size(picture.width, picture.height, MAX_PIXELS if most is None else most)
            _check_parts(picture, data)
            yield picture
    except ImageError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"too large: more than {MAX_PIXELS:,} pixels") from error
    except pillow.UnidentifiedImageError as error:
        raise ImageError("not an image of a supported format") from error
    except MemoryError as error:
        raise ImageError("too large: not enough memory to unpack it") from error
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


@cache
def _heif_format() -> str:
    """Pillow's name of HEIF, which a package of its own teaches it."""
    try:
        import_extra("pillow_heif", "heic").register_heif_opener()
    except MissingExtra as error:
        raise ImageError(f"HEIC image: {error}") from error
    return "HEIF"


def _check_size(width: int, height: int, most: int) -> None:
    if width * height > most:
        raise ImageError(f"too large: {width} x {height} pixels, at most {most:,} allowed")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"too narrow: {width} x {height} pixels, at most {MAX_ASPECT} : 1 allowed")


def _check_parts(picture: Picture, data: bytes) -> None:
    """Refuse a picture whose parts exceed what its size implies: tiles larger than any picture, scans without end."""
    if picture.format == "TIFF":
        width, length = (int(picture.tag_v2.get(tag, 0)) for tag in (TILE_WIDTH, TILE_LENGTH))  # type: ignore[attr-defined]
        if width * length > max(TILE_PIXELS, picture.width * picture.height):
            raise ImageError(f"too large: tiles of {width} x {length} pixels in {picture.width} x {picture.height}")
    elif picture.format == "PPM" and data[1:2] in b"123" and len(data) > PLAIN_BYTES:
        raise ImageError(f"too large: more than {PLAIN_BYTES:,} bytes of numbers as text; save it as binary PPM")
    elif picture.format in ("JPEG", "MPO") and count_scans(data, MAX_SCANS + 1) > MAX_SCANS:
        raise ImageError(f"too many scans: at most {MAX_SCANS} allowed")


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
    rows = max(1, BAND_PIXELS // width)
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


def _upright(picture: Picture) -> None:
    from PIL import ImageOps

    ImageOps.exif_transpose(picture, in_place=True)


def jpeg_thumbnail(picture: Picture, side: int, *, quality: int = 80) -> bytes:
    """A JPEG of a picture whose longer side has at most `side` pixels."""
    small = picture.copy()
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
