"""Responses without end are ended: by a deletion, a revoked key and a stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import httpx
import pytest
import torch

from helpers.service import Server
from helpers.streams import space, stream
from unseen.errors import ServiceError
from unseen.serve.client import Client
from unseen.serve.http import events
from unseen.serve.http.auth import ApiKeys
from unseen.serve.http.events import EventHub, VerdictEvent
from unseen.serve.http.service import Service
from unseen.serve.settings import Durability, Settings
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.folder import StreamConfig

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 4)


@pytest.fixture
def keyed(tmp_path):
    LABELS.save(tmp_path / "space")
    keys = ApiKeys(tmp_path / "data")
    text = keys.add("a", "admin")
    with Server(tmp_path / "data") as server, Client(server.url, text) as client:
        yield server, client.create(tmp_path / "space", detector="online"), keys, text


def listener(server, remote, text) -> tuple[threading.Thread, threading.Event]:
    started = threading.Event()

    def listen() -> None:
        headers = {"authorization": f"Bearer {text}"}
        with httpx.stream("GET", f"{server.url}/v1/streams/{remote.id}/events", headers=headers, timeout=30) as answer:
            for _ in answer.iter_raw():
                started.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert started.wait(10)
    return thread, started


def test_events_end_when_the_stream_is_deleted(keyed):
    server, remote, _, text = keyed
    thread, _ = listener(server, remote, text)
    remote.delete()
    thread.join(10)
    assert not thread.is_alive()


def test_events_end_when_the_key_is_revoked(keyed):
    server, remote, keys, text = keyed
    thread, _ = listener(server, remote, text)
    keys.revoke(text.split("_")[1])
    thread.join(8)
    assert not thread.is_alive()


@pytest.mark.timing
def test_a_stop_ends_events_and_takes_less_than_ten_seconds(keyed):
    server, remote, _, text = keyed
    thread, _ = listener(server, remote, text)
    remote.observe(Z)
    started = time.perf_counter()
    os.kill(server.process.pid, signal.SIGTERM)
    server.process.join(12)
    assert time.perf_counter() - started < 10
    assert server.process.exitcode in (0, -signal.SIGTERM)  # uvicorn stops in order, then raises the signal again
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.timing
def test_a_stop_does_not_wait_for_mining_or_streams_not_yet_opened(tmp_path):
    first = Service(Settings(tmp_path, encoder=None))
    for _ in range(3):
        first.store.create(LABELS, StreamConfig("", "", "*", "online"))
    asyncio.run(first.close())
    service, gate = Service(Settings(tmp_path, encoder=None)), threading.Event()
    mining = [service.encoder._mining.submit(gate.wait, 60) for _ in range(3)]
    service.store.stopping = True
    service.store.open_all()
    started = time.perf_counter()
    asyncio.run(service.close())
    assert time.perf_counter() - started < 5
    assert mining[-1].cancelled()
    gate.set()


def test_a_stop_takes_no_more_snapshots_after_a_while(tmp_path):
    service = Service(Settings(tmp_path, encoder=None, durability=Durability(stop_seconds=-1)))
    opened = [service.store.create(LABELS, StreamConfig("", "", "*", "online")).opened for _ in range(3)]
    for one in opened:
        one.observe([sample_batch(LABELS, Z)])
    asyncio.run(service.close())
    assert not any(one.snapshots.all() for one in opened)
    again = Service(Settings(tmp_path, encoder=None))
    again.store.open_all()
    assert [entry.opened.at.seq for entry in again.store.entries.values()] == [4, 4, 4]
    asyncio.run(again.close())


def test_events_resume_after_the_last_one_and_say_what_is_missed(keyed):
    _, remote, _, _ = keyed
    first = remote.observe(stream(LABELS, 3, seed=1), key="a")
    remote.observe(stream(LABELS, 4, seed=2), key="b")
    told = remote.events(after=first[1]["seq"])
    assert [row["seq"] for row in next(told)["verdicts"]] == [2, 3, 4, 5, 6]
    remote.observe(stream(LABELS, 2, seed=3), key="c")
    assert [row["seq"] for row in next(told)["verdicts"]] == [7, 8]
    remote.observe(stream(LABELS, 2100, seed=4)[:2048], key="d")
    remote.observe(stream(LABELS, 64, seed=5), key="e")
    late = remote.events(after=8)
    assert next(late)["missed"] == {"first": 9, "last": 2048 + 64 + 9 - 2048 - 1}
    assert next(late)["verdicts"][0]["seq"] == 2048 + 64 + 9 - 2048


def test_a_listener_that_heard_of_samples_that_are_not_there_hears_what_comes():
    assert [events.last_event(str(heard), newest=11) for heard in (1_000, 2**70, 11, 3, -7)] == [11, 11, 11, 3, -1]
    assert events.last_event(None, newest=11) == 11
    with pytest.raises(ServiceError, match="Last-Event-ID"):
        events.last_event("x", newest=11)


def test_a_broken_event_stream_is_made_again_by_the_client(tmp_path):
    LABELS.save(tmp_path / "space")
    server = Server(tmp_path / "data").ready()
    remote = server.client.create(tmp_path / "space", detector="online")
    with Client(server.url) as listening:
        told = listening.stream(remote.id).events(after=-1)
        remote.observe(Z)
        assert len(next(told)["verdicts"]) == 4
        port = int(server.url.rpartition(":")[2])
        server.kill()
        with Server(tmp_path / "data", port=port) as again:
            again.client.stream(remote.id).observe(stream(LABELS, 2, seed=3))
            assert [row["seq"] for row in next(told)["verdicts"]] == [4, 5]


def test_a_slow_listener_is_told_what_it_missed_and_holds_nothing_meanwhile():
    kept = VerdictEvent(0, 9, "ten")

    async def told() -> list[str]:
        hub = EventHub(1)

        async def newest(after: int) -> list[VerdictEvent]:
            return [kept] if kept.last > after else []

        messages = hub.listen("s", -1, newest, lambda: True)
        seen = [await anext(messages), await anext(messages)]
        nonlocal_kept(hub)
        seen.append(await anext(messages))
        hub.close()
        return [*seen, *[text async for text in messages]]

    def nonlocal_kept(hub: EventHub) -> None:
        nonlocal kept
        for last in range(20, 50, 10):  # each in the place of the one before
            kept = VerdictEvent(last - 9, last, "ten")
            hub.wake("s")

    seen = asyncio.run(told())
    assert seen[1:] == [
        "id: 9\nevent: verdicts\ndata: ten\n\n",
        'event: missed\ndata: {"first": 10, "last": 30}\n\nid: 40\nevent: verdicts\ndata: ten\n\n',
    ]


def test_a_stream_has_so_many_listeners():
    async def check() -> None:
        hub = EventHub(1)
        messages = hub.listen("s", -1, nothing, lambda: True)
        await anext(messages)
        with pytest.raises(ServiceError, match="at most 1 listeners"):
            hub.listen("s", -1, nothing, lambda: True)
        hub.close()
        assert not [text async for text in messages]
        hub.listen("s", -1, nothing, lambda: True)

    async def nothing(after: int) -> list[VerdictEvent]:
        return []

    asyncio.run(check())
