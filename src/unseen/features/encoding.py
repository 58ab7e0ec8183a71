"""Images to vectors: while the encoder works on one batch, the next are read, decoded, resized and sent to it.

Threads, one for each core, read images and make pixels of them. One more thread puts batches on a GPU, on a stream of
their own, and another launches the encoder: the former may wait for the GPU, and the GPU should not wait for the
former. Vectors are fetched when the next batch is on its way. Order is kept, and what is held at a time is bounded: a
few images for each core, and the batches of which the encoder has not returned the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders import Encoder
from unseen.encoders.base import ByteEncoder, SplitEncoder
from unseen.encoders.gpu_jpeg import GpuDecoder, PlainJpeg
from unseen.errors import EncoderError, ImageError, check_choice
from unseen.images import Entry, Image, Skipped
from unseen.images.decode import decode, reduced
from unseen.images.sources import in_lists, prefetch, usable_cores

DECODERS = ("pillow", "gpu")


@dataclass(frozen=True)
class AheadNumbers:
    """How far ahead of the encoder images are read, and what is kept of them."""

    chunk: int = (
        4  # images that a thread decodes at a time: handing over each by itself would take as long as reading it
    )
    read: int = 16  # files that a thread reads at a time for a GPU to decode, and threads
    readers: int = 4
    # batches whose pixels are on their way to the encoder, and that it has, beside the one that is waited for
    sent: int = 1
    launched: int = 2
    kept: int = 256  # pixels of the longer side of a picture that is kept: what a report shows
    spare: int = 2  # a JPEG is read at a scale that leaves so many times the pixels of the tower, on each side


NUMBERS = AheadNumbers()


class Prepared(NamedTuple):
    """An image with pixels for the encoder; without them where its vector is known. Its picture may be gone."""

    image: Image | Entry
    pixels: Tensor | None


class Undecoded(NamedTuple):
    """An image whose file is left to the GPU."""

    image: Entry
    file: PlainJpeg


ReadRow = Prepared | Undecoded | Skipped


@dataclass(frozen=True)
class ImageReader:
    """What threads do with images: read, decode, resize; of one whose vector `is_held` no pixels are made."""

    prepare: Callable[[Sequence[Image]], Tensor]
    is_held: Callable[[Image], bool] | None = None
    keeps_pictures: bool = False  # small ones
    leaves_plain: bool = False  # plain JPEG files to the GPU
    least: int = 0  # pixels of the shorter side that a reduced picture must have, 0 for whole pictures

    def read_all(self, entries: Sequence[Entry]) -> list[ReadRow]:
        """Some images in order."""
        return [self.read(entry) for entry in entries]

    def read(self, entry: Entry) -> ReadRow:
        """One image, or the reason why there is none."""
        if not self.leaves_plain or entry.data is None:
            return self._prepared(entry, entry.read(self.least))
        try:
            data = entry.data()
        except ImageError as error:
            return Skipped(entry.path, str(error))
        file = PlainJpeg.of_bytes(data)
        return Undecoded(entry, file) if file else self.by_pillow(entry, data)

    def by_pillow(self, entry: Entry, data: bytes) -> Prepared | Skipped:
        """The image of an entry whose bytes have been read."""
        whole = partial(decode, data, least=self.least)
        return self._prepared(entry, replace(entry, decode=whole, data=None).read())

    def _prepared(self, entry: Entry, image: Image | Skipped) -> Prepared | Skipped:
        if isinstance(image, Skipped):
            return image
        pixels = None if self.is_held and self.is_held(image) else self.prepare([image])[0]
        if not self.keeps_pictures:
            return Prepared(entry, pixels)
        return Prepared(replace(image, pixels=reduced(image.pixels, NUMBERS.kept)), pixels)


class Encoded(NamedTuple):
    """A batch in order, those of its images that were encoded, and one vector for each of these."""

    rows: tuple[Image | Entry | Skipped, ...]
    new: tuple[Image | Entry, ...]
    z: Float[Tensor, "n d"]


class SentBatch(NamedTuple):
    """A batch whose pixels are on the device, or will be once an event has come; None where it has none."""

    rows: Sequence[ReadRow]
    pixels: Tensor | None
    there: torch.cuda.Event | None


class LaunchedBatch(NamedTuple):
    """A batch whose vectors the GPU may still be computing."""

    encoded: Encoded
    done: torch.cuda.Event | None

    def fetch(self) -> Encoded:
        """The batch once its vectors are there."""
        if self.done:
            self.done.synchronize()
        # out of the memory that copies go through, and of inference mode
        return self.encoded._replace(z=self.encoded.z.clone())


class BatchLauncher:
    """Puts batches on a device and launches the encoder on them: two steps, so that a thread can do each."""

    def __init__(
        self,
        reader: ImageReader,
        vectors: Callable[[Tensor], Tensor],
        device: torch.device,
        decoder: GpuDecoder | None = None,
    ) -> None:
        self.reader, self.vectors, self.device, self.decoder = reader, vectors, device, decoder
        # before other work on the GPU: the next pixels must be there when the encoder is done with these
        self.side = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def send(self, rows: Sequence[ReadRow]) -> SentBatch:
        """A batch with its pixels on the device; a file that the GPU does not decode is decoded elsewhere."""
        with self._on_device(), torch.inference_mode(), torch.cuda.stream(self.side):
            found, pixels = self._pixels(list(rows))
            return SentBatch(found, pixels, self.side.record_event() if self.side else None)

    def launch(self, sent: SentBatch) -> LaunchedBatch:
        """A batch on its way through the encoder."""
        images = tuple(row if isinstance(row, Skipped) else row.image for row in sent.rows)
        if sent.pixels is None:
            return LaunchedBatch(Encoded(images, (), torch.empty(0)), None)
        read = [row for row in sent.rows if not isinstance(row, Skipped)]
        new = tuple(row.image for row in read if isinstance(row, Undecoded) or row.pixels is not None)
        with self._on_device(), torch.inference_mode():
            if sent.there:  # the encoder waits for its pixels, and their memory for the encoder
                torch.cuda.current_stream().wait_event(sent.there)
                sent.pixels.record_stream(torch.cuda.current_stream())
            z, done = self._fetching(self.vectors(sent.pixels))
        return LaunchedBatch(Encoded(images, new, z), done)

    def _on_device(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device) if self.side else nullcontext()

    def _fetching(self, z: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if not self.side:
            return z, None
        there = torch.empty(z.shape, dtype=z.dtype, pin_memory=True).copy_(z, non_blocking=True)
        done = torch.cuda.Event(blocking=True)
        done.record()
        return there, done

    def _pixels(self, rows: list[ReadRow]) -> tuple[list[ReadRow], Tensor | None]:
        """A batch and the pixels of its images on the device, None where there is none to encode."""
        found, order, parts = self._decoded(rows) if self.decoder else (rows, [], [])
        read = [(i, row.pixels) for i, row in enumerate(found) if isinstance(row, Prepared) and row.pixels is not None]
        if read:
            parts.append(self._sent([pixels for _, pixels in read]))
            order += [i for i, _ in read]
        if not parts:
            return found, None
        pixels = torch.cat(parts) if len(parts) > 1 else parts[0]
        in_order = order == sorted(order)
        return found, pixels if in_order else pixels[torch.tensor(order).argsort().to(self.device)]

    def _decoded(self, rows: list[ReadRow]) -> tuple[list[ReadRow], list[int], list[Tensor]]:
        """A batch, the places of the files that the GPU has decoded, and their pixels; Pillow decodes others."""
        waiting = [(i, row) for i, row in enumerate(rows) if isinstance(row, Undecoded)]
        if not waiting or self.decoder is None:
            return rows, [], []
        decoded = self.decoder([row.file for _, row in waiting])
        for place in set(range(len(waiting))) - set(decoded.places):
            i, row = waiting[place]
            rows[i] = self.reader.by_pillow(row.image, row.file.data.numpy().tobytes())
        return rows, [waiting[place][0] for place in decoded.places], [decoded.pixels] if decoded.places else []

    def _sent(self, pixels: list[Tensor]) -> Tensor:
        """Pixels on the device; from memory that a GPU can read while other work goes on."""
        if not self.side:
            return torch.stack(pixels)
        room = torch.empty((len(pixels), *pixels[0].shape), dtype=pixels[0].dtype, pin_memory=True)
        return torch.stack(pixels, out=room).to(self.device, non_blocking=True)


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


def make_launcher(
    encoder: SplitEncoder,
    decoder: str = DECODERS[0],
    *,
    is_held: Callable[[Image], bool] | None = None,
    keeps_pictures: bool = False,
) -> BatchLauncher:
    """What reads images for an encoder and launches it, with plain JPEG files decoded on its device for `gpu`."""
    device, least = device_of(encoder), NUMBERS.spare * getattr(encoder, "side", 0)
    if decoder != "gpu":
        reader = ImageReader(encoder.prepare, is_held, keeps_pictures, least=least)
        return BatchLauncher(reader, encoder.vectors, device)
    by_bytes = cast(ByteEncoder, encoder)
    on_gpu = GpuDecoder(by_bytes.byte_steps, device)
    on_gpu.check()
    reader = ImageReader(by_bytes.byte_steps.cropped, is_held, keeps_pictures, leaves_plain=True, least=least)
    return BatchLauncher(reader, by_bytes.byte_vectors, device, on_gpu)


def encode_ahead(
    entries: Iterable[Entry], launcher: BatchLauncher, *, size: int, chunk: int = NUMBERS.chunk
) -> Iterator[Encoded]:
    """Yield batches of `size` entries in order, with the vectors of their images.

    Threads that decode need all cores; those that only read for a GPU take turns with the one that launches, so there
    are few.
    """
    workers, chunk = (NUMBERS.readers, NUMBERS.read) if launcher.decoder else (usable_cores(), chunk)
    chunks = in_lists(entries, chunk)
    with closing(prefetch(launcher.reader.read_all, chunks, workers=workers, most=2 * workers, name="read")) as read:
        batches = in_lists((row for rows in read for row in rows), size)
        with closing(prefetch(launcher.send, batches, workers=1, most=NUMBERS.sent, name="send")) as sent:
            for launched in prefetch(launcher.launch, sent, workers=1, most=NUMBERS.launched, name="launch"):
                yield launched.fetch()
