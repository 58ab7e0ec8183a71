"""Plain JPEG files decoded, resized and cropped on a GPU by torchvision and torch, a batch at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from unseen.encoders.preprocess import Preprocess
from unseen.errors import EncoderError, ImageError, import_extra
from unseen.images.decode import open_header


@dataclass(frozen=True)
class JpegNumbers:
    """What is decoded on a GPU, and how much of it at once."""

    most_pixels: int = 1 << 24  # of a picture that is not left to Pillow: a batch of larger ones would fill a GPU
    together: int = 1 << 27  # pixels that are decoded at once: 400 MB, room for seven hundred pictures of 500 x 375
    edge: int = 64  # pixels of the picture with which the decoder is tried


NUMBERS = JpegNumbers()

START, END = b"\xff\xd8\xff", b"\xff\xd9"
ORIENTATION, UPRIGHT = 0x0112, 1  # in EXIF
FILTERS = ("bilinear", "bicubic")  # those that torch has as Pillow has them


class PlainJpeg(NamedTuple):
    """A JPEG file that any decoder reads alike, and how many pixels it claims."""

    data: UInt8[Tensor, " bytes"]
    pixels: int

    @classmethod
    def of_bytes(cls, data: bytes) -> PlainJpeg | None:
        """The file with these bytes; None for any other, which Pillow knows better or has a reason to refuse.

        Plain is: whole, sequential, in YCbCr, upright, neither huge nor narrow.
        """
        if not data.startswith(START) or not data.endswith(END):
            return None
        try:
            with open_header(data, NUMBERS.most_pixels, ("JPEG",)) as picture:
                is_plain = picture.mode == "RGB" and "progressive" not in picture.info
                is_plain &= picture.info.get("adobe_transform", 1) == 1
                is_plain &= picture.getexif().get(ORIENTATION, UPRIGHT) == UPRIGHT
                size = picture.width * picture.height
        except ImageError:
            return None
        # copied, because torch takes no memory that cannot be written to
        return cls(torch.frombuffer(bytearray(data), dtype=torch.uint8), size) if is_plain else None


DecodeJpegs = Callable[[Sequence[UInt8[Tensor, " bytes"]], torch.device], Sequence[UInt8[Tensor, "3 h w"]]]


def decode_jpegs(files: Sequence[UInt8[Tensor, " bytes"]], device: torch.device) -> Sequence[UInt8[Tensor, "3 h w"]]:
    """JPEG files as pictures on a GPU; one that cannot be decoded fails all of them."""
    torchvision = import_extra("torchvision.io", "open-clip")
    pictures: list[Tensor] = torchvision.decode_jpeg(files, mode=torchvision.ImageReadMode.RGB, device=device)
    return pictures


class DecodedJpegs(NamedTuple):
    """The pixels of those files that could be decoded, in their order, and which these are."""

    pixels: UInt8[Tensor, "n crop crop 3"]
    places: list[int]


class GpuDecoder:
    """Makes pixels of plain JPEG files as `Preprocess.cropped` makes them of pictures, but for rounding."""

    def __init__(self, steps: Preprocess, device: torch.device, decode: DecodeJpegs = decode_jpegs) -> None:
        if steps.resample not in FILTERS or steps.crop > steps.resize:
            raise EncoderError(
                f"expected bicubic or bilinear resizing to at least the crop for decoding on a GPU, got {steps}; "
                "leave --decode out"
            )
        self.steps, self.device, self._decode = steps, device, decode

    def check(self) -> None:
        """Refuse a machine that cannot decode on its GPU."""
        buffer = io.BytesIO()
        import_extra("PIL.Image", "encode").new("RGB", (NUMBERS.edge, NUMBERS.edge)).save(buffer, "JPEG")
        try:
            self._decode([torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)], self.device)
        except (ImportError, RuntimeError) as error:
            raise EncoderError(
                f"expected torchvision with a JPEG decoder for {self.device}, got {str(error)[:120]}; install the "
                "torchvision for CUDA that belongs to this torch, or leave --decode out"
            ) from error

    def __call__(self, files: Sequence[PlainJpeg]) -> DecodedJpegs:
        """The pixels of files; those that the decoder does not take are left out."""
        pixels: list[Tensor] = []
        places: list[int] = []
        for some in _groups(files):
            found = zip(some, self._pictures([files[place] for place in some]), strict=True)
            for place, picture in found:
                if picture is not None:
                    pixels.append(resized(picture, self.steps))
                    places.append(place)
        crop = self.steps.crop
        none = torch.empty(0, crop, crop, 3, dtype=torch.uint8, device=self.device)
        return DecodedJpegs(torch.stack(pixels) if pixels else none, places)

    def _pictures(self, files: Sequence[PlainJpeg]) -> list[Tensor | None]:
        """A picture or None for each file: halves of a batch that failed are tried again."""
        if self.device.type == "cuda":
            # the decoder writes on a stream of its own, and would not wait for what still reads memory that was freed
            torch.cuda.current_stream(self.device).synchronize()
        try:
            return list(self._decode([file.data for file in files], self.device))
        except RuntimeError:
            if len(files) == 1:
                return [None]
            half = len(files) // 2
            return self._pictures(files[:half]) + self._pictures(files[half:])


def resized(picture: UInt8[Tensor, "3 h w"], steps: Preprocess) -> UInt8[Tensor, "crop crop 3"]:
    """A picture resized and cropped as `Preprocess.pixels` does it, where it lies."""
    across, down = steps.axes(picture.shape[2], picture.shape[1])
    inner = picture[:, down.margin : down.margin + down.size, across.margin : across.margin + across.size]
    size = (down.resized, across.resized)
    whole = interpolate(inner[None].float(), size, mode=steps.resample, antialias=True)[0]
    part = whole[:, down.first : down.first + steps.crop, across.first : across.first + steps.crop]
    return part.round().clamp_(0, 255).byte().permute(1, 2, 0)


def _groups(files: Sequence[PlainJpeg]) -> Iterator[list[int]]:
    """Yield the places of files in groups whose pictures are held at once."""
    group: list[int] = []
    pixels = 0
    for place, file in enumerate(files):
        pixels += file.pixels
        if group and pixels > NUMBERS.together:
            yield group
            group, pixels = [], file.pixels
        group.append(place)
    if group:
        yield group
