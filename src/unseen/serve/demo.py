"""The demo stream: the images inside the package, observed one batch after another while the service runs."""

import asyncio
import logging
from functools import lru_cache

from torch import Tensor

from unseen import demo, detectors
from unseen.errors import ServiceError
from unseen.serve.http.service import Service
from unseen.serve.settings import EVERYONE
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.folder import StreamConfig
from unseen.serve.stream.store import StreamEntry

NAME = "demo: six animals among other things"

log = logging.getLogger("unseen.serve")


async def feed(service: Service, *, count: int = 4, seconds: float = 0.4) -> None:
    """Observe so many images, wait so long, and again, for ever."""
    while not service.store.ready:
        await asyncio.sleep(seconds)
    try:
        entry = await _demo_entry(service)
        while True:
            features, thumbnails = next_images(entry.opened.at.seq, count)
            batch = sample_batch(entry.opened.labels, features, thumbnails=thumbnails)
            await service.observe(entry, batch)
            await asyncio.sleep(seconds)
    except ServiceError as error:
        log.warning("the demo stopped: %s", error)


def next_images(seen: int, count: int) -> tuple[Tensor, tuple[bytes, ...]]:
    """The features and thumbnails that come next; after the last image all come again in another order."""
    turn, place = divmod(seen, len(demo.load().keys))
    pack = _shuffled(turn)
    places = slice(place, min(place + count, len(pack.keys)))
    return pack.z[places], pack.thumbnails[places]


@lru_cache(1)
def _shuffled(turn: int) -> demo.Pack:
    """The pack in the random order of one turn; what is known of the truth stays in it."""
    return demo.load().shuffled(turn)


async def _demo_entry(service: Service) -> StreamEntry:
    for entry in service.store.entries.values():
        if entry.config.name == NAME and entry.stream:
            return entry
    wanted = StreamConfig("", NAME, EVERYONE, detectors.DEFAULT)
    return await service.run_chore(EVERYONE, lambda: service.store.create(demo.load().space, wanted))
