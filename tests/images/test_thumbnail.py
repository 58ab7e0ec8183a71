"""Thumbnails."""

import io

from PIL import Image as Pillow

from unseen.images.decode import jpeg_thumbnail


def test_a_thumbnail_is_a_jpeg_whose_longer_side_has_the_given_length() -> None:
    data = jpeg_thumbnail(Pillow.effect_noise((3000, 2000), 60).convert("RGB"), 96)
    with Pillow.open(io.BytesIO(data)) as small:
        assert (small.format, small.size) == ("JPEG", (96, 64))
    assert len(data) < 10_000
