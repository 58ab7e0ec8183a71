"""A stream to look at: made-up vectors around made-up names, one in three from none of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI
from torch import Tensor
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.errors import ServiceError
from unseen.serve.app import Service, opened
from unseen.serve.stream import Config
from unseen.serve.streams import DEFAULT, Slot, Streams

NAME = "demo: made-up samples"
NAMES = ("golden retriever", "espresso", "sports car", "lighthouse", "acoustic guitar", "red fox", "sunflower", "tram")
WIDTH, NEGATIVES, BATCH, PAUSE = 64, 200, 8, 0.5

log = logging.getLogger("unseen.serve")


def space() -> LabelSpace:
    """Return eight names and two hundred negatives with random vectors."""
    anchors = normalize(torch.randn(len(NAMES) + NEGATIVES, WIDTH, generator=torch.Generator().manual_seed(0)), dim=-1)
    negatives = tuple(f"something else {number}" for number in range(NEGATIVES))
    return LabelSpace(NAMES, negatives, anchors[: len(NAMES)], anchors[len(NAMES) :], encoder="made up")


def samples(labels: LabelSpace, count: int, generator: torch.Generator) -> Tensor:
    """Return vectors that share a shift from the text, as images do, around known names or unknown things."""
    gap = normalize(torch.randn(labels.dim, generator=torch.Generator().manual_seed(1)), dim=-1)
    known = labels.id_anchors[torch.randint(len(labels.names), (count,), generator=generator)]
    other = normalize(torch.randn(40, labels.dim, generator=torch.Generator().manual_seed(2)), dim=-1)
    unknown = other[torch.randint(len(other), (count,), generator=generator)]
    near = torch.where(torch.rand(count, 1, generator=generator) < 2 / 3, known, unknown)
    noise = normalize(torch.randn(count, labels.dim, generator=generator), dim=-1)
    return normalize(0.6 * near + 0.5 * gap + 0.6 * noise, dim=-1)


def attach(app: FastAPI) -> None:
    """Let a service feed its demo stream while it runs."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        async with inner(application):
            task = asyncio.create_task(_feed(application))
            yield
            task.cancel()
            await asyncio.wait([task])

    app.router.lifespan_context = lifespan


async def _feed(app: FastAPI) -> None:
    service: Service = app.state.service
    while not service.streams.ready:
        await asyncio.sleep(0.05)
    slot = _found(service.streams)
    stream = opened(slot)
    generator = torch.Generator().manual_seed(stream.at.seq)
    while True:
        part = stream.part(samples(stream.labels, BATCH, generator))
        try:
            await service.observe(slot, part)
        except ServiceError as error:
            log.warning("the demo stopped: %s", error)
            return
        await asyncio.sleep(PAUSE)


def _found(streams: Streams) -> Slot:
    for slot in streams.slots.values():
        if slot.config.name == NAME and slot.stream:
            return slot
    return streams.create(space(), Config("", NAME, "*", DEFAULT))
