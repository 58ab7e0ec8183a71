"""Batches of images that are put on a GPU and encoded there while the caller goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders.gpu.jpeg import GpuDecoder
from unseen.features.reading import ImageReader, Prepared, ReadRow, Undecoded
from unseen.images import Entry, Image, Skipped


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
        if self.done is None:
            return self.encoded
        self.done.synchronize()
        return self.encoded._replace(z=self.encoded.z.clone())  # out of the memory that copies go through


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
        new = tuple(row.image for row in sent.rows if not isinstance(row, Skipped) and _is_encoded(row))
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
        found, order, parts = self._decoded(rows)
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
        if len(decoded.places) < len(waiting):
            rows, is_decoded = list(rows), set(decoded.places)
            for place, (i, row) in enumerate(waiting):
                if place not in is_decoded:
                    rows[i] = self.reader.by_pillow(row.image, row.file.data.numpy().tobytes())
        return rows, [waiting[place][0] for place in decoded.places], [decoded.pixels] if decoded.places else []

    def _sent(self, pixels: list[Tensor]) -> Tensor:
        """Pixels on the device; from memory that a GPU can read while other work goes on."""
        if not self.side:
            return torch.stack(pixels)
        room = torch.empty((len(pixels), *pixels[0].shape), dtype=pixels[0].dtype, pin_memory=True)
        return torch.stack(pixels, out=room).to(self.device, non_blocking=True)


def _is_encoded(row: Prepared | Undecoded) -> bool:
    """Whether an image has pixels now: the GPU has decoded what it was left."""
    return isinstance(row, Undecoded) or row.pixels is not None
