"""Decoding: every kind of pixel and every kind of damage."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image as Pillow

from helpers.pictures import GREEN, RED, centre, encoded, flat, turned
from unseen.errors import ImageError
from unseen.images import decode as decoding
from unseen.images.decode import decode


def test_exif_orientation_is_applied():
    left_red = Pillow.new("RGB", (8, 4), RED)
    left_red.paste(GREEN, (4, 0, 8, 4))
    upright = decode(encoded(left_red, exif=turned(6)))  # to be turned a quarter clockwise
    assert upright.size == (4, 8)
    assert upright.getpixel((2, 1)) == RED
    assert upright.getpixel((2, 6)) == GREEN


@pytest.mark.parametrize("alpha", [0, 255])
def test_alpha_lies_on_white_paper(alpha):
    expected = RED if alpha else (255, 255, 255)
    assert centre(decode(encoded(flat((*RED, alpha), mode="RGBA")))) == expected


def test_palette_with_and_without_transparency():
    palette = flat().convert("P", palette=Pillow.Palette.ADAPTIVE)
    assert centre(decode(encoded(palette))) == RED
    assert centre(decode(encoded(palette, transparency=palette.getpixel((0, 0))))) == (255, 255, 255)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (65535, 255), (32896, 128), (300, 1)])
def test_sixteen_bits_are_scaled_not_clipped(value, expected):
    deep = Pillow.fromarray(np.full((6, 8), value, dtype=np.uint16))
    assert centre(decode(encoded(deep))) == (expected,) * 3
    assert centre(decode(encoded(deep, "TIFF"))) == (expected,) * 3


def test_cmyk_becomes_rgb():
    red, green, blue = centre(decode(encoded(flat((0, 255, 255, 0), mode="CMYK"), "JPEG")))
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_files_give_their_first_frame(kind):
    first = decode(encoded(flat(RED), kind, save_all=True, append_images=[flat(GREEN)]))
    assert np.abs(np.subtract(centre(first), RED)).max() < 12


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "empty file"),
        (b"hello, I am no picture", "not an image of a supported format"),
        (encoded(Pillow.effect_noise((64, 64), 50).convert("RGB"), "JPEG")[:-400], "damaged: .*truncated"),
        (encoded(Pillow.effect_noise((64, 64), 50), "PNG")[:-600], "damaged"),
        (encoded(flat(0.5, mode="F"), "TIFF"), "floating-point pixels have no agreed range"),
        (encoded(flat(1 << 20, mode="I"), "TIFF"), "32-bit pixels have no agreed range"),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "float", "32 bit"],
)
def test_bad_pictures_are_refused_with_a_reason(bad, reason):
    with pytest.raises(ImageError, match=reason):
        decode(bad)


def test_decompression_bombs_are_refused():
    with pytest.raises(ImageError, match="too large: more than 89,478,485 pixels"):
        decode(encoded(Pillow.new("1", (9500, 9500))))


@pytest.mark.parametrize("kind", ["ICO", "EPS", "TGA", "PCX", "ICNS"])
def test_formats_that_are_not_listed_are_refused_unopened(kind):
    with pytest.raises(ImageError, match="not an image of a supported format"):
        decode(encoded(flat(size=(32, 32)), kind))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF"])
def test_listed_formats_are_read(kind):
    assert decode(encoded(flat(size=(32, 32)), kind)).size == (32, 32)


@pytest.mark.parametrize("size", [(1, 50_000), (49_999_999, 1)])
def test_a_picture_that_is_too_narrow_is_refused_by_its_header(size):
    with pytest.raises(ImageError, match=r"too narrow: .* at most 100 : 1"):
        decode(encoded(Pillow.new("1", size)))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "CMYK"])
def test_a_picture_converted_in_bands_equals_one_converted_whole(monkeypatch, mode):
    noise = Pillow.merge("RGBA", [Pillow.effect_noise((30, 40), 80)] * 4)
    if mode == "I;16":
        picture = Pillow.fromarray(np.arange(1200, dtype=np.uint16).reshape(40, 30) * 50)
    else:
        picture = (noise.convert("RGB") if mode == "CMYK" else noise).convert(mode)
    data = encoded(picture, "TIFF" if mode == "CMYK" else "PNG")
    whole = decode(data)
    monkeypatch.setattr(decoding, "BOUNDS", replace(decoding.BOUNDS, band_pixels=7 * 30))
    assert decode(data).tobytes() == whole.tobytes()


def tiled_tiff(picture: int, tile: int) -> bytes:
    """A grey TIFF of a square picture in one square tile."""
    packed = zlib.compress(bytes(tile * tile), 9)
    sizes = {256: picture, 257: picture, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 0, 325: len(packed)}
    sizes[324] = 8 + 2 + 12 * len(sizes) + 4
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sizes.items())
    return b"II*\0" + struct.pack("<IH", 8, len(sizes)) + tags + bytes(4) + packed


def test_a_tile_may_be_larger_than_its_picture_but_not_without_end():
    assert decode(tiled_tiff(64, 256)).size == (64, 64)
    with pytest.raises(ImageError, match="too large: tiles of 3000 x 3000 pixels in 64 x 64"):
        decode(tiled_tiff(64, 3000))


def jpeg_with_scans(more: int) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    data = encoded(Pillow.effect_noise((64, 64), 50), "JPEG", progressive=True)
    return data[:-2] + data[data.rfind(b"\xff\xda") : -2] * more + data[-2:]


def test_a_jpeg_of_scans_without_end_is_refused():
    usual = decoding.count_scans(jpeg_with_scans(0), 101)
    assert 1 < usual < 12
    assert decoding.count_scans(jpeg_with_scans(20), 101) == usual + 20
    assert decode(jpeg_with_scans(20)).size == (64, 64)
    with pytest.raises(ImageError, match="too many scans: at most 100"):
        decode(jpeg_with_scans(101))


def test_a_caller_may_allow_fewer_formats():
    """A picture of 2 KB that claims 64 x 64 pixels may unpack to gigabytes in AVIF."""
    data = encoded(flat(size=(32, 32)), "AVIF")
    with pytest.raises(ImageError, match="not an image of a supported format"):
        decode(data, formats=("JPEG", "PNG"))


def test_a_picture_in_text_may_not_be_large():
    assert centre(decode(b"P3 2 2 255\n" + b"255 0 0 " * 4)) == (255, 0, 0)
    with pytest.raises(ImageError, match="too large: more than 1,048,576 bytes of numbers as text"):
        decode(b"P3 500 500 1\n" + b"1 1 1 " * 250_000)


def test_a_jpeg_of_100_megapixels_is_read_at_a_smaller_scale_and_a_progressive_one_refused():
    picture = Pillow.new("L", (10_000, 10_000), 90)
    assert decode(encoded(picture, "JPEG")).size == (5_000, 5_000)
    with pytest.raises(ImageError, match="too large: 10000 x 10000 pixels, at most 89,478,485 allowed"):
        decode(encoded(picture, "JPEG", progressive=True))
    with pytest.raises(ImageError, match="too large: more than 89,478,485 pixels"):
        decode(encoded(picture, "JPEG"), most=1000)
