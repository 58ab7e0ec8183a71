"""Small pictures and their bytes."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image as Pillow
from PIL.Image import Image as Picture

from unseen.images import Skipped, read_images

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


def shades(source: Any, **options: Any) -> list[Any]:
    """The amount of red of each picture of a source, or why it could not be read."""
    (batch,) = read_images(source, **options)
    return [row.reason if isinstance(row, Skipped) else centre(row.pixels)[0] for row in batch.rows]


def save_shade(path: Path, colour: tuple[int, ...], by: int = 0, size: tuple[int, int] = (20, 16)) -> None:
    """Write a flat picture, a little lighter than `colour`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat(tuple(max(0, min(255, part + by)) for part in colour), size).save(path)


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar of files by name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def save_video(path: Path, colours: Iterable[Any], *, rate: int = 5, side: int = 32) -> None:
    """Write a video of a frame of each colour."""
    import av

    with av.open(str(path), "w") as video:
        stream = video.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        for colour in colours:
            video.mux(stream.encode(av.VideoFrame.from_image(flat(colour, (side, side)))))
        video.mux(stream.encode())


def turned(orientation: int) -> Pillow.Exif:
    """What a camera writes that was held another way."""
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    return exif
