"""Images to vectors: while the encoder works on one batch, the next are read, decoded and resized.

Threads, one for each core, read images and make pixels of them; one more runs the encoder. Order is kept, and what is
held at a time is bounded: a few images for each core, and two batches. Where a GPU decodes, few threads read files and
hand them to it, as many at a time as it takes to keep it busy.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from unseen.encoders import Encoder
from unseen.encoders.base import ByteEncoder, SplitEncoder
from unseen.encoders.preprocess import Preprocess, narrow_margins
from unseen.errors import EncoderError, ImageError, check_choice, import_extra
from unseen.images import Entry, Image, Skipped
from unseen.images.decode import open_header, reduced
from unseen.images.sources import in_lists, prefetch, usable_cores

DECODERS = ("pillow", "gpu")
FILTERS = ("bilinear", "bicubic")  # those that torch has as Pillow has them
START, END = b"\xff\xd8\xff", b"\xff\xd9"  # of a JPEG file that is whole
ORIENTATION, UPRIGHT = 0x0112, 1  # in EXIF


@dataclass(frozen=True)
class AheadNumbers:
    """How far ahead of the encoder images are read, and what is kept of them."""

    chunk: int = 4  # images that a thread decodes at a time: handing over each would take as long as reading it
    read: int = 64  # files that a thread reads at a time for a GPU to decode, and threads
    readers: int = 4
    batches: int = 1  # that the encoder has had or has, beside the one that is waited for
    kept: int = 256  # pixels of the longer side of a picture that is kept: what a report shows
    spare: int = 2  # a JPEG is read at a scale that leaves so many times the pixels of the tower, on each side
    most_pixels: int = 1 << 24  # of a picture that is not left to Pillow: a batch of larger ones would fill a GPU


NUMBERS = AheadNumbers()


class Prepared(NamedTuple):
    """An image with pixels for the encoder; without them where its vector is known. Its picture may be gone."""

    image: Image | Entry
    pixels: Tensor | None


class Encoded(NamedTuple):
    """A batch in order, those of its images that were encoded, and one vector for each of these."""

    rows: tuple[Image | Entry | Skipped, ...]
    new: tuple[Image | Entry, ...]
    z: Float[Tensor, "n d"]


@dataclass(frozen=True)
class ImageReader:
    """What threads do with images: read, decode, resize; of one whose vector `is_held` no pixels are made."""

    prepare: Callable[[Sequence[Image]], Tensor]
    vectors: Callable[[Tensor], Tensor]  # of pixels: the encoder
    device: torch.device
    least: int = 0  # pixels of the shorter side that a reduced picture must have, 0 for whole pictures
    is_held: Callable[[Image], bool] | None = None
    keeps_pictures: bool = False  # small ones

    @property
    def workers(self) -> int:
        """How many threads read: those that decode need all cores."""
        return usable_cores()

    def read_all(self, entries: Sequence[Entry]) -> list[Prepared | Skipped]:
        """Some images in order, or the reasons why there are none."""
        return [self.read(entry) for entry in entries]

    def read(self, entry: Entry) -> Prepared | Skipped:
        """One image, or the reason why there is none."""
        image = entry.read(self.least)
        if isinstance(image, Skipped):
            return image
        pixels = None if self.is_held and self.is_held(image) else self.prepare([image])[0]
        if not self.keeps_pictures:
            return Prepared(entry, pixels)
        return Prepared(replace(image, pixels=reduced(image.pixels, NUMBERS.kept)), pixels)

    def encode(self, rows: Sequence[Prepared | Skipped]) -> Encoded:
        """A batch with the vectors of its pixels."""
        images = tuple(row if isinstance(row, Skipped) else row.image for row in rows)
        new = [(row.image, row.pixels) for row in rows if isinstance(row, Prepared) and row.pixels is not None]
        if not new:
            return Encoded(images, (), torch.empty(0))
        encoded, pixels = zip(*new, strict=True)
        if any(one.device != self.device for one in pixels):  # sent as one, but for some that are there
            pixels = _sent(pixels, self.device)
        with torch.inference_mode():
            z = self.vectors(torch.stack(pixels)).cpu()
        return Encoded(images, encoded, z.clone())  # out of inference mode


def _sent(pixels: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Pixels on a device; those that are elsewhere go there together."""
    here = [one for one in pixels if one.device != device]
    sent = iter(torch.stack(here).to(device).unbind())
    return [next(sent) if one.device != device else one for one in pixels]


DecodeJpegs = Callable[[Sequence[UInt8[Tensor, " bytes"]], torch.device], Sequence[UInt8[Tensor, "3 h w"]]]


def decode_jpegs(files: Sequence[UInt8[Tensor, " bytes"]], device: torch.device) -> Sequence[UInt8[Tensor, "3 h w"]]:
    """JPEG files as pictures on a GPU; one that cannot be decoded fails all of them."""
    torchvision = import_extra("torchvision.io", "open-clip")
    pictures: list[Tensor] = torchvision.decode_jpeg(files, mode=torchvision.ImageReadMode.RGB, device=device)
    return pictures


@dataclass(frozen=True, kw_only=True)
class GpuReader(ImageReader):
    """The same, with plain JPEG files decoded, resized and cropped on a GPU; all others go through Pillow."""

    steps: Preprocess
    decode: DecodeJpegs = decode_jpegs

    @property
    def workers(self) -> int:
        """How many threads read: those that only read take turns with the one that encodes, so there are few."""
        return NUMBERS.readers

    def check(self) -> None:
        """Refuse a machine that cannot decode on its GPU, and steps that torch does not know."""
        if self.steps.resample not in FILTERS or self.steps.crop > self.steps.resize:
            raise EncoderError(
                f"expected bicubic or bilinear resizing to at least the crop for decoding on a GPU, got {self.steps}; "
                "leave --decode out"
            )
        buffer = io.BytesIO()
        import_extra("PIL.Image", "encode").new("RGB", (64, 64)).save(buffer, "JPEG")
        try:
            self.decode([_as_tensor(buffer.getvalue())], self.device)
        except (ImportError, RuntimeError) as error:
            raise EncoderError(
                f"expected torchvision with a JPEG decoder for {self.device}, got {str(error)[:120]}; install the "
                "torchvision for CUDA that belongs to this torch, or leave --decode out"
            ) from error

    def read_all(self, entries: Sequence[Entry]) -> list[Prepared | Skipped]:
        """Some images in order, or the reasons why there are none."""
        files = [read_bytes(entry) for entry in entries]
        plain = [place for place, data in enumerate(files) if data and is_plain_jpeg(data)]
        pixels = dict(zip(plain, self._pixels([_as_tensor(files[place] or b"") for place in plain]), strict=True))
        rows: list[Prepared | Skipped] = []
        for place, (entry, data) in enumerate(zip(entries, files, strict=True)):
            if (found := pixels.get(place)) is not None:
                rows.append(Prepared(entry, found))
                continue
            row = self.read(entry if data is None else replace(entry, data=lambda data=data: data))
            rows.append(row._replace(image=entry) if isinstance(row, Prepared) else row)
        return rows

    def _pixels(self, files: Sequence[UInt8[Tensor, " bytes"]]) -> list[Tensor | None]:
        """The pixels of each file, None of one that the decoder does not take."""
        if not files:
            return []
        if self.device.type == "cuda":
            # the decoder writes on a stream of its own, and would not wait for what still reads memory that was freed
            torch.cuda.current_stream(self.device).synchronize()
        try:
            return [self.steps.resized(picture) for picture in self.decode(files, self.device)]
        except RuntimeError:
            return [None] if len(files) == 1 else [one for file in files for one in self._pixels([file])]


def read_bytes(entry: Entry) -> bytes | None:
    """The bytes of an image, None where there are none to be had."""
    try:
        return entry.data() if entry.data else None
    except ImageError:
        return None


def is_plain_jpeg(data: bytes) -> bool:
    """Whether any decoder reads a file alike: a whole, sequential, upright JPEG in YCbCr, neither huge nor narrow.

    Any other Pillow knows better, or has a reason to refuse.
    """
    if not data.startswith(START) or not data.endswith(END):
        return False
    try:
        with open_header(data, NUMBERS.most_pixels, ("JPEG",)) as picture:
            is_upright = picture.getexif().get(ORIENTATION, UPRIGHT) == UPRIGHT
            is_usual = picture.mode == "RGB" and picture.info.get("adobe_transform", 1) == 1
            is_narrow = any(narrow_margins(*picture.size))
            return is_upright and is_usual and not is_narrow and "progressive" not in picture.info
    except ImageError:
        return False


def _as_tensor(data: bytes) -> UInt8[Tensor, " bytes"]:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)  # copied: torch takes no memory that is read-only


def split_encoder(encoder: Encoder) -> SplitEncoder | None:
    """An encoder whose pixels can be made ahead of their vectors, None for one that only takes images."""
    is_split = hasattr(encoder, "prepare") and hasattr(encoder, "vectors")
    return cast(SplitEncoder, encoder) if is_split else None


def device_of(encoder: Encoder) -> torch.device:
    """Where an encoder wants its pixels."""
    device = getattr(encoder, "device", None)
    return device if isinstance(device, torch.device) else torch.device("cpu")


def check_decoder(encoder: Encoder, decoder: str) -> None:
    """Refuse a way of decoding that is none, or that an encoder does not have."""
    check_choice("a way of decoding", decoder, DECODERS)
    if decoder == "gpu" and (device_of(encoder).type != "cuda" or not hasattr(encoder, "byte_vectors")):
        raise EncoderError(
            f"expected an encoder on a GPU, offline or one of transformers, for decoding there, got {encoder.name} on "
            f"{device_of(encoder)}; leave --decode out"
        )


def make_reader(
    encoder: SplitEncoder,
    decoder: str = DECODERS[0],
    *,
    is_held: Callable[[Image], bool] | None = None,
    keeps_pictures: bool = False,
) -> ImageReader:
    """What reads images for an encoder and runs it, with plain JPEG files decoded on its device for `gpu`."""
    device, least = device_of(encoder), NUMBERS.spare * getattr(encoder, "side", 0)
    if decoder != "gpu":
        return ImageReader(encoder.prepare, encoder.vectors, device, least, is_held, keeps_pictures)
    by_bytes = cast(ByteEncoder, encoder)
    steps = by_bytes.byte_steps
    reader = GpuReader(steps.cropped, by_bytes.byte_vectors, device, least, steps=steps)
    reader.check()
    return reader


def encode_ahead(
    entries: Iterable[Entry], reader: ImageReader, *, size: int, chunk: int = NUMBERS.chunk
) -> Iterator[Encoded]:
    """Yield batches of `size` entries in order, with the vectors of their images."""
    chunks = in_lists(entries, NUMBERS.read if isinstance(reader, GpuReader) else chunk)
    workers = reader.workers
    with closing(prefetch(reader.read_all, chunks, workers=workers, most=2 * workers, name="read")) as read:
        batches = in_lists((row for rows in read for row in rows), size)
        yield from prefetch(reader.encode, batches, workers=1, most=NUMBERS.batches, name="encode")
