"""The demo stream: the images inside the package, observed one batch after another while the service runs."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache

from fastapi import FastAPI
from torch import Tensor

from unseen import demo, detectors
from unseen.errors import ServiceError
from unseen.serve.http.service import Service
from unseen.serve.settings import EVERYONE
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.config import StreamConfig
from unseen.serve.stream.store import StreamEntry
from unseen.serve.stream.stream import Stream

NAME = "demo: six animals among other things"
BATCH, PAUSE = 4, 0.4


def attach(app: FastAPI) -> None:
    """Let a service feed its demo stream while it runs."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        async with inner(application):
            task = asyncio.create_task(_feed(application.state.service))
            yield
            task.cancel()
            await asyncio.wait([task])

    app.router.lifespan_context = lifespan


log = logging.getLogger("unseen.serve")


async def _feed(service: Service) -> None:
    while not service.store.ready:
        await asyncio.sleep(0.05)
    entry = await _demo_entry(service)
    while True:
        try:
            stream = entry.opened
            features, thumbnails = next_batch(stream)
            await service.observe(entry, sample_batch(stream.labels, features, thumbnails=thumbnails))
        except ServiceError as error:
            log.warning("the demo stopped: %s", error)
            return
        await asyncio.sleep(PAUSE)


def next_batch(stream: Stream) -> tuple[Tensor, tuple[bytes, ...]]:
    """The features and thumbnails that come next; after the last image all come again in another order."""
    count = len(demo.load().keys)
    turn, place = divmod(stream.at.seq, count)
    pack = shuffled(turn)
    places = slice(place, min(place + BATCH, count))
    return pack.z[places], pack.thumbnails[places]


@lru_cache(1)
def shuffled(turn: int) -> demo.Pack:
    """The pack in the random order of one turn; what is known of the truth stays in it."""
    return demo.load().shuffled(turn)


async def _demo_entry(service: Service) -> StreamEntry:
    for entry in service.store.entries.values():
        if entry.config.name == NAME and entry.stream:
            return entry
    wanted = StreamConfig("", NAME, EVERYONE, detectors.DEFAULT)
    return await service.run_chore(EVERYONE, lambda: service.store.create(demo.load().space, wanted))
