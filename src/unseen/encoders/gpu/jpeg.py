"""Plain JPEG files decoded, resized and cropped on a GPU, a batch at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from unseen.encoders.gpu.resize import GpuResize
from unseen.encoders.preprocess import Preprocess
from unseen.errors import EncoderError, import_extra

TOGETHER = 1 << 27  # pixels that are decoded at once: 400 MB, room for seven hundred pictures of 500 x 375
EDGE = 64  # pixels of the picture with which the decoder is tried


class PlainJpeg(NamedTuple):
    """A file of which `images.jpeg.plain_size` has told the size."""

    data: UInt8[Tensor, " bytes"]
    width: int
    height: int

    @classmethod
    def of_bytes(cls, data: bytes, width: int, height: int) -> PlainJpeg:
        """The file with these bytes, copied: torch takes none that cannot be written to."""
        return cls(torch.frombuffer(bytearray(data), dtype=torch.uint8), width, height)


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
    """Makes pixels of plain JPEG files as `Preprocess.cropped` makes them of pictures."""

    def __init__(
        self,
        steps: Preprocess,
        device: torch.device,
        decode: DecodeJpegs = decode_jpegs,
        resize: Callable[[Sequence[Tensor]], Tensor] | None = None,
    ) -> None:
        self.device, self._decode, self._resize = device, decode, resize or GpuResize(steps, device)

    def check(self) -> None:
        """Refuse a machine that cannot decode on its GPU."""
        pillow = import_extra("PIL.Image", "encode")
        buffer = io.BytesIO()
        pillow.new("RGB", (EDGE, EDGE)).save(buffer, "JPEG")
        try:
            self._decode([PlainJpeg.of_bytes(buffer.getvalue(), EDGE, EDGE).data], self.device)
        except (ImportError, RuntimeError) as error:
            raise EncoderError(
                f"expected torchvision with a JPEG decoder for {self.device}, got {str(error)[:120]}; install the "
                "torchvision for CUDA that belongs to this torch, or leave --decode out"
            ) from error

    def __call__(self, files: Sequence[PlainJpeg]) -> DecodedJpegs:
        """The pixels of files; those that the decoder does not take are left out."""
        parts: list[Tensor] = []
        places: list[int] = []
        for some in _groups(files):
            pictures = self._pictures([files[place] for place in some])
            found = {place: picture for place, picture in zip(some, pictures, strict=True) if picture is not None}
            parts.append(self._resize(list(found.values())))
            places += list(found)
        return DecodedJpegs(parts[0] if len(parts) == 1 else torch.cat([self._resize([]), *parts]), places)

    def _pictures(self, files: Sequence[PlainJpeg]) -> list[Tensor | None]:
        """A picture or None for each file: halves of a batch that failed are tried again."""
        if self.device.type == "cuda":
            # the decoder writes on a stream of its own, and would not wait for what still reads memory that was freed
            torch.cuda.current_stream(self.device).synchronize()
        try:
            pictures = self._decode([file.data for file in files], self.device)
        except RuntimeError:
            if len(files) == 1:
                return [None]
            half = len(files) // 2
            return self._pictures(files[:half]) + self._pictures(files[half:])
        return [
            picture if picture.shape == (3, file.height, file.width) else None
            for file, picture in zip(files, pictures, strict=True)
        ]


def _groups(files: Sequence[PlainJpeg]) -> Iterator[list[int]]:
    """Yield the places of files in groups whose pictures are held at once."""
    group: list[int] = []
    pixels = 0
    for place, file in enumerate(files):
        pixels += file.width * file.height
        if group and pixels > TOGETHER:
            yield group
            group, pixels = [], file.width * file.height
        group.append(place)
    if group:
        yield group
