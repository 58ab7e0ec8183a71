"""The alarm on groups that grow fast, in a service that groups its streams in the background."""

from __future__ import annotations

import asyncio

import pytest
import torch

from unseen import demo
from unseen.serve.http.service import Service
from unseen.serve.settings import EVERYONE, Settings
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.config import StreamConfig
from unseen_bench.demo import trial

PACK = demo.load()


def arrivals() -> torch.Tensor:
    """Animals first, then clothes among them."""
    by_class = PACK.z.split(len(PACK.z) // 20)
    known = PACK.z[trial().is_id]
    return torch.cat([known[:280].repeat(2, 1), by_class[-1], by_class[-2]])


@pytest.fixture
def service(tmp_path):
    made = Service(Settings(tmp_path, encoder=None, group_minutes=1e-6))
    made.store.open_all()
    yield made
    asyncio.run(made.close())


def test_a_fast_growing_group_is_counted_by_metrics_and_shown(service):
    entry = service.store.create(PACK.space, StreamConfig("", "", EVERYONE, "pooled"))

    async def observe() -> None:
        for part in arrivals().split(64):
            await service.observe(entry, sample_batch(PACK.space, part.numpy()))
        for _ in range(200):
            service.growth.look(service.store.threads.chores)
            if entry.opened.history.growing:
                return
            await asyncio.sleep(0.05)
            service.growth._due = 0.0

    asyncio.run(observe())
    growing = entry.opened.history.growing
    assert growing
    assert f'unseen_growing_groups{{stream="{entry.config.id}"}} {len(growing)}.0' in service.metrics.text().decode()


def test_zero_minutes_is_never(tmp_path):
    made = Service(Settings(tmp_path, encoder=None, group_minutes=0))
    made.growth.look(made.store.threads.chores)
    assert made.growth._tasks == set()
    asyncio.run(made.close())
