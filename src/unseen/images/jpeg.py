"""Which JPEG files any decoder reads alike, told by what stands before the compressed data."""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from unseen.images.decode import MAX_ASPECT

MOST_PIXELS = 1 << 24  # of a picture that is not left to Pillow: a batch of larger ones would fill a GPU
START, END = b"\xff\xd8\xff", b"\xff\xd9"
BASELINE, CODES, SCAN, QUANTISERS, INTERVAL, APPLICATION, COMMENT = 0xC0, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xFE
EXIF_OR_XMP, ADOBE = 0xE1, 0xEE
SEGMENT = struct.Struct(">BBH")  # 0xff, marker, length
FRAME = struct.Struct(">BHHB")  # bits, height, width, components
COLOURS = (b"\1\2\3", b"\0\1\2")  # numbers of the components of a picture in YCbCr
SAMPLINGS = frozenset({0x11, 0x21, 0x12, 0x22})  # of brightness, for each sample of colour
NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")  # in compressed data: neither a value of 255 nor a restart
WHOLE_SCAN = b"\0\x3f\0"  # ends the header of a scan with all coefficients
EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
ORIENTATION, SHORT, UPRIGHT = 0x0112, 3, 1


def plain_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a plain JPEG, None for any other file.

    Plain is: whole, baseline, one scan, YCbCr with 8 bits, upright, neither huge nor narrow. Of any other file Pillow
    may know better, or has a reason to refuse it.
    """
    if not data.startswith(START) or not data.endswith(END):
        return None
    try:
        return _size_before_scan(data)
    except (struct.error, IndexError):  # the header ends too early
        return None


def _size_before_scan(data: bytes) -> tuple[int, int] | None:
    at, frame = 2, b""
    while True:
        prefix, marker, length = SEGMENT.unpack_from(data, at)
        segment = data[at + SEGMENT.size : at + 2 + length]
        at += 2 + length
        if prefix != 0xFF:
            return None
        if marker == SCAN:
            is_plain = bool(frame) and _is_whole_scan(segment, frame) and _is_one_scan(data, at)
            return FRAME.unpack_from(frame)[2:0:-1] if is_plain else None
        if marker == BASELINE and not frame and _is_plain_frame(segment):
            frame = segment
        elif not _is_harmless(marker, segment):
            return None


def _is_plain_frame(segment: bytes) -> bool:
    bits, height, width, components = FRAME.unpack_from(segment)
    numbers, samplings, tables = (segment[FRAME.size + i :: 3] for i in range(3))
    is_plain = bits == 8 and components == 3 and len(segment) == FRAME.size + 9 and numbers in COLOURS
    is_plain &= samplings[0] in SAMPLINGS and samplings[1:] == b"\x11\x11" and max(tables) < 4
    return is_plain and 0 < width * height <= MOST_PIXELS and max(width, height) <= MAX_ASPECT * min(width, height)


def _is_whole_scan(segment: bytes, frame: bytes) -> bool:
    """Whether a scan has all components of a frame."""
    has_tables = all(table & 0x0F < 2 and table >> 4 < 2 for table in segment[2:7:2])
    return segment[0] == 3 and segment[1:7:2] == frame[FRAME.size :: 3] and has_tables and segment[7:] == WHOLE_SCAN


def _is_one_scan(data: bytes, at: int) -> bool:
    """Whether from `at` on, compressed data has no markers but restarts and the end."""
    found = NEXT_MARKER.search(data, at)
    return found is not None and found.start() == len(data) - len(END)


def _is_harmless(marker: int, segment: bytes) -> bool:
    """Whether a segment is sound, and neither turns the picture nor says that it is not in YCbCr."""
    if marker == CODES:
        return _are_codes(segment)
    if marker == QUANTISERS:
        return len(segment) % 65 == 0 and all(number < 4 for number in segment[::65])
    if marker == INTERVAL:
        return len(segment) == 2
    if marker == ADOBE:
        return not segment.startswith(b"Adobe") or segment[11] == 1
    if marker == EXIF_OR_XMP:
        return _is_upright(segment[len(EXIF) :]) if segment.startswith(EXIF) else b"Orientation" not in segment
    return marker == COMMENT or marker & 0xF0 == APPLICATION


@lru_cache(256)  # most files have the same ones
def _are_codes(segment: bytes) -> bool:
    """Whether a segment defines Huffman codes that exist."""
    at = 0
    while at < len(segment):
        which, counts = segment[at], segment[at + 1 : at + 17]
        symbols = segment[at + 17 : at + 17 + sum(counts)]
        at += 17 + sum(counts)
        free = 1
        for count in counts:
            free = 2 * free - count
            if free < bool(count):  # the code of ones alone is not used
                return False
        if which not in (0, 1, 0x10, 0x11) or (which < 0x10 and max(symbols, default=0) > 11):
            return False
    return at == len(segment)


def _is_upright(tiff: bytes) -> bool:
    """Whether EXIF has no orientation, or that of an upright picture; false where it cannot be read."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return False
    (first,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, first)
    fields = tiff[first + 2 : first + 2 + 12 * count]
    found = [
        (kind, many, value)
        for tag, kind, many, value, _ in struct.iter_unpack(f"{order}HHIHH", fields)
        if tag == ORIENTATION
    ]
    return len(fields) == 12 * count and all(one == (SHORT, 1, UPRIGHT) for one in found)
