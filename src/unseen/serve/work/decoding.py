"""Images decoded in processes of their own: one that takes too much memory or time ends its process and nothing else.

A decoder written in C may hold the interpreter for seconds, and may take what it likes; no thread can bound that. A
process is forked from one that has imported everything, so that a new one begins at once.
"""

from __future__ import annotations

import ctypes
import logging
import queue
import resource
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from unseen.errors import ImageError
from unseen.images import Image
from unseen.images.decode import decode, jpeg_thumbnail
from unseen.serve.settings import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")  # and HEIC, by its package: what cameras and web sites write
SIDE = 96  # pixels of a thumbnail's longer side
CONTEXT = get_context("forkserver")
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

Prepare = Callable[[Sequence[Image]], torch.Tensor]


class DecodedImage(NamedTuple):
    """An image as an encoder takes it, and a small JPEG of it."""

    pixels: np.ndarray[Any, Any]
    thumbnail: bytes


class DecoderProcesses:
    """So many processes, each of which decodes one image at a time."""

    def __init__(self, count: int, limits: Limits) -> None:
        self._limits = limits
        CONTEXT.set_forkserver_preload([__name__, "unseen.encoders"])
        self._free: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(self._started())

    def decode(self, prepare: Prepare, data: bytes) -> DecodedImage | ImageError:
        """An image as `prepare` makes it, or why it cannot be; waits for a process that is free."""
        process = self._free.get()
        try:
            return process.submit(_decoded, prepare, data, self._limits.pixels, self._limits.decode_seconds).result()
        except BrokenProcessPool:
            process = self._started()
            return ImageError("takes more memory or time to decode than a service gives it; save it smaller")
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes."""
        while not self._free.empty():
            self._free.get().shutdown(wait=False, cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        begin = partial(_begin, self._limits.decode_bytes)
        return ProcessPoolExecutor(1, mp_context=CONTEXT, initializer=begin)


def _begin(most: int) -> None:
    """Bound the memory of this process, and let a signal to the service reach the service alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)  # the service may be killed: none is to stay behind
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + most, has + most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _decoded(prepare: Prepare, data: bytes, most: int, seconds: float) -> DecodedImage | ImageError:
    """An image decoded and prepared; after so many seconds of a processor the system ends this process."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        picture = decode(data, most=most, formats=FORMATS)
        return DecodedImage(prepare([Image("", picture)])[0].numpy(), jpeg_thumbnail(picture, SIDE))
    except ImageError as error:
        return ImageError(str(error))  # without the picture that its traceback holds
    except MemoryError:
        return ImageError("too large: not enough memory to unpack it")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
