"""Which files any decoder reads alike: everything else is left to Pillow."""

import io

import numpy as np
import pytest
from PIL import Image as Pillow

from helpers.pictures import encoded, flat
from unseen.images.jpeg import MOST_PIXELS, plain_size

NOISE = Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))


def jpeg(picture=NOISE, **options):
    return encoded(picture, "JPEG", **options)


def with_exif(orientation=None, **tags):
    exif = Pillow.Exif()
    exif[0x010F] = "a maker"
    if orientation is not None:
        exif[0x0112] = orientation
    return jpeg(exif=exif)


def with_segment(data, marker, body):
    return data[:2] + bytes([0xFF, marker]) + (2 + len(body)).to_bytes(2) + body + data[2:]


@pytest.mark.parametrize(
    "data",
    [
        jpeg(),
        jpeg(subsampling="4:4:4"),
        jpeg(subsampling="4:2:2", quality=95),
        jpeg(optimize=True),
        jpeg(restart_marker_blocks=1),
        jpeg(comment="a comment", dpi=(300, 300), icc_profile=b"a profile"),
        with_exif(),
        with_exif(1),
        with_segment(jpeg(), 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"),
        with_segment(jpeg(), 0xE2, b"a thumbnail \xff\xda\xff\xda in a segment"),
        with_segment(jpeg(), 0xEE, b"Adobe\0\x64\0\0\0\0\1"),
    ],
)
def test_a_plain_file_has_a_size(data):
    assert plain_size(data) == (40, 30)


TWO = io.BytesIO()
NOISE.save(TWO, "MPO", save_all=True, append_images=[NOISE])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encoded(NOISE, "PNG"),
        jpeg(flat(mode="CMYK", colour=(1, 2, 3, 4))),
        jpeg(flat(mode="L", colour=9)),
        jpeg(progressive=True),
        jpeg(keep_rgb=True),
        *[with_exif(turned) for turned in range(2, 9)],
        jpeg()[:-2],
        jpeg()[:100] + b"\xff\xd9",
        jpeg() + b"more",
        TWO.getvalue(),
        jpeg(flat(size=(1010, 10))),
        with_segment(jpeg(), 0xE1, b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>6</tiff:Orientation>"),
        with_segment(jpeg(), 0xE1, b"Exif\0\0no TIFF"),
        with_segment(jpeg(), 0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\0"),
        with_segment(jpeg(), 0xEE, b"Adobe\0\x64\0\0\0\0\0"),
        with_segment(jpeg(), 0xC2, b""),
        with_segment(jpeg(), 0xCC, b"arithmetic"),
    ],
)
def test_any_other_file_has_none(data):
    assert plain_size(data) is None


def test_a_huge_picture_has_none():
    data = jpeg()
    at = data.index(b"\xff\xc0") + 5
    side = (MOST_PIXELS >> 12).to_bytes(2)
    assert plain_size(data[:at] + side + (4096).to_bytes(2) + data[at + 4 :]) == (4096, MOST_PIXELS >> 12)
    assert plain_size(data[:at] + side + (4097).to_bytes(2) + data[at + 4 :]) is None


def test_a_header_may_end_anywhere():
    data = with_exif(1)
    for end in range(len(data)):
        assert plain_size(data[:end] + b"\xff\xd9") in (None, (40, 30))
