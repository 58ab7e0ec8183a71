"""Images to vectors on a GPU: while it works on one batch, the next are read, decoded, resized and sent there.

Threads, one for each core, read images and make pixels of them; JPEG files that the GPU decodes are read by processes.
One more thread puts batches on the GPU, on a stream of their own, and another launches the encoder: the former may wait
for the GPU, and the GPU should not wait for the former. Vectors are fetched when the next batch is on its way. Order is
kept, and what is held at a time is bounded: a few images for each core, and the batches of which the GPU has not
returned the vectors.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch

from unseen.encoders import Encoder
from unseen.encoders.base import ByteEncoder, DeviceEncoder
from unseen.encoders.gpu.jpeg import GpuDecoder
from unseen.errors import EncoderError, check_choice
from unseen.features.launch import BatchLauncher, Encoded
from unseen.features.reading import ImageReader, ReadRow
from unseen.images import Entry
from unseen.images.ahead import ahead, in_lists, usable_cores
from unseen.images.plain_pool import PlainPool, can_start

DECODERS = ("pillow", "gpu")
CHUNK = 4  # images that a thread decodes at a time
READ, READERS, PROCESSES = 16, 4, 8  # files read at a time for a GPU to decode; threads, and processes at most
# batches whose pixels are on their way to the GPU, and that the encoder has, beside the one that is waited for
SENT, LAUNCHED = 1, 2


class ReadPlan(NamedTuple):
    """How images are read: by how many threads, and how many at a time."""

    workers: int
    chunk: int  # handing over each by itself would take as long as reading it
    in_processes: bool = False  # each thread has a process that reads plain local files


def read_plan(launcher: BatchLauncher) -> ReadPlan:
    """How images are read for a launcher.

    Threads that decode need all cores. Threads that only read take turns with the one that launches, so there are few,
    and where there are cores for it, processes read local files.
    """
    cores = usable_cores()
    if not launcher.decoder:
        return ReadPlan(cores, CHUNK)
    processes = min(cores // 2, PROCESSES) if can_start() else 0
    return ReadPlan(processes, READ, True) if processes > 1 else ReadPlan(READERS, READ)


def gpu_encoder(encoder: Encoder) -> DeviceEncoder | None:
    """An encoder that torch runs on a GPU, None for one that runs elsewhere or by other means."""
    device = getattr(encoder, "device", None)
    is_split = hasattr(encoder, "prepare") and hasattr(encoder, "vectors")
    is_on_gpu = is_split and isinstance(device, torch.device) and device.type == "cuda"
    return cast(DeviceEncoder, encoder) if is_on_gpu else None


def check_decoder(encoder: Encoder, decoder: str) -> None:
    """Refuse a way of decoding that is none, or that an encoder does not have."""
    check_choice("a way of decoding", decoder, DECODERS)
    if decoder == "gpu" and (gpu_encoder(encoder) is None or not hasattr(encoder, "byte_vectors")):
        raise EncoderError(
            f"expected an encoder on a GPU, offline or one of transformers, for decoding there, got {encoder.name} on "
            f"{getattr(encoder, 'device', 'cpu')}; leave --decode out"
        )


def make_launcher(encoder: DeviceEncoder, reader: ImageReader, decoder: str = DECODERS[0]) -> BatchLauncher:
    """What puts batches on the device of an encoder, with plain JPEG files decoded there for `gpu`."""
    if decoder != "gpu":
        return BatchLauncher(reader, encoder.vectors, encoder.device)
    by_bytes = cast(ByteEncoder, encoder)
    on_gpu = GpuDecoder(by_bytes.byte_steps, encoder.device)
    on_gpu.check()
    reader = replace(reader, prepare=by_bytes.byte_steps.cropped, leaves_plain=True)
    return BatchLauncher(reader, by_bytes.byte_vectors, encoder.device, on_gpu)


def encode_ahead(
    entries: Iterable[Entry], launcher: BatchLauncher, *, size: int, plan: ReadPlan | None = None
) -> Iterator[Encoded]:
    """Yield batches of `size` entries in order, with the vectors of their images."""
    plan = plan or read_plan(launcher)
    with PlainPool(plan.workers) as pool:
        read_all = partial(launcher.reader.read_all, pool=pool if plan.in_processes else None)
        chunks = in_lists(entries, plan.chunk)
        # closed before the processes, which its threads ask
        with closing(ahead(read_all, chunks, workers=plan.workers, most=2 * plan.workers, name="read")) as read:
            batches = in_lists((row for rows in read for row in rows), size)
            yield from encode_batches(batches, launcher)


def encode_batches(batches: Iterable[Sequence[ReadRow]], launcher: BatchLauncher) -> Iterator[Encoded]:
    """Yield batches that have been read with the vectors of their images."""
    with closing(ahead(launcher.send, batches, workers=1, most=SENT, name="send")) as sent:
        for launched in ahead(launcher.launch, sent, workers=1, most=LAUNCHED, name="launch"):
            yield launched.fetch()
