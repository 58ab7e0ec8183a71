"""Images decoded in processes of their own: one that takes too much memory or time ends its process and nothing else.

A decoder written in C may hold the interpreter for seconds, and may take what it likes; no thread can bound that. A
process is forked from one that has imported everything, so that a new one begins at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from unseen.errors import ImageError
from unseen.images import Image
from unseen.images.decode import decode, jpeg_thumbnail
from unseen.serve.settings import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")  # and HEIC, by its package: what cameras and web sites write
CONTEXT = get_context("forkserver")

Prepare = Callable[[Sequence[Image]], torch.Tensor]


class DecodedImage(NamedTuple):
    """An image as an encoder takes it, and a small JPEG of it."""

    pixels: np.ndarray[Any, Any]
    thumbnail: bytes


class Decoders:
    """So many processes, each of which decodes one image at a time; they take seconds to begin."""

    def __init__(self, count: int, limits: Limits) -> None:
        self._limits = limits
        CONTEXT.set_forkserver_preload([__name__, "unseen.encoders"])
        self._free: asyncio.Queue[ProcessPoolExecutor] = asyncio.Queue()
        for _ in range(count):
            self._free.put_nowait(self._started())

    async def decode(self, prepare: Prepare, data: bytes) -> DecodedImage | ImageError:
        """An image as `prepare` makes it, or why it cannot be; waits for a process that is free."""
        process, most, seconds = await self._free.get(), self._limits.pixels, self._limits.decode_seconds
        try:
            return await asyncio.wrap_future(process.submit(_decoded, prepare, data, most, seconds))
        except BrokenProcessPool:
            process = await asyncio.to_thread(self._started)
            return ImageError("takes more memory or time to decode than a service gives it; save it smaller")
        finally:
            self._free.put_nowait(process)

    def close(self) -> None:
        """End the processes."""
        while not self._free.empty():
            self._free.get_nowait().shutdown(wait=False, cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        """A process that was asked for: whoever asks first waits until torch is imported, so the loop never does."""
        begin = partial(_begin, self._limits.decode_bytes)
        process = ProcessPoolExecutor(1, mp_context=CONTEXT, initializer=begin)
        process.submit(os.getpid)
        return process


def _begin(most: int) -> None:
    """Bound the memory of this process, and let a signal to the service reach the service alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong with an image is in the answer
    warnings.filterwarnings("ignore", module=r"PIL\.")
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_service, daemon=True).start()
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + most, has + most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _end_with_service() -> None:
    """Stay behind no service that was killed; what this was forked from ends with the last process."""
    service = parent_process()
    assert service is not None
    service.join()
    os._exit(0)


def _decoded(prepare: Prepare, data: bytes, most: int, seconds: float) -> DecodedImage | ImageError:
    """An image decoded and prepared; after so many seconds of a processor the system ends this process."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        picture = decode(data, most=most, formats=FORMATS)
        return DecodedImage(prepare([Image("", picture)])[0].numpy(), jpeg_thumbnail(picture, 96))
    except ImageError as error:
        return ImageError(str(error))  # without the picture that its traceback holds
    except MemoryError:
        return ImageError("too large: not enough memory to unpack it")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
