"""Responses without end are ended: by a deletion, a revoked key and a stop; and what a listener missed is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from helpers.service import (
    CONFIG,
    LABELS,
    ApiKeys,
    Client,
    Durability,
    Server,
    Service,
    Settings,
    create,
    sample_batch,
)
from helpers.streams import stream

Z = stream(LABELS, 4)


@pytest.fixture
def keyed(tmp_path):
    keys = ApiKeys(tmp_path / "data")
    text = keys.add("a", "admin")
    with Server(tmp_path / "data") as server, Client(server.url, text) as client:
        yield server, create(client), keys, text


@pytest.mark.timing
@pytest.mark.parametrize("ended", ["stream deleted", "key revoked", "service stopped"])
def test_events_end_with_their_stream_their_key_and_the_service(keyed, ended):
    server, remote, keys, text = keyed
    listening = threading.Event()

    def listen() -> None:
        headers = {"authorization": f"Bearer {text}"}
        with httpx.stream("GET", f"{server.url}/v1/streams/{remote.id}/events", headers=headers, timeout=30) as answer:
            for _ in answer.iter_raw():
                listening.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert listening.wait(10)
    if ended == "stream deleted":
        remote.delete()
    elif ended == "key revoked":
        keys.revoke(text.split("_")[1])
    else:
        remote.observe(Z)
        os.kill(server.process.pid, signal.SIGTERM)
        server.process.join(10)
        assert server.process.exitcode in (0, -signal.SIGTERM)  # uvicorn stops in order, then raises the signal again
    thread.join(8)
    assert not thread.is_alive()


@pytest.mark.timing
def test_a_stop_does_not_wait_for_mining_or_streams_not_yet_opened(tmp_path):
    first = Service(Settings(tmp_path, encoder=None))
    for _ in range(3):
        first.store.create(LABELS, CONFIG)
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
    opened = [service.store.create(LABELS, CONFIG).opened for _ in range(3)]
    for one in opened:
        one.observe([sample_batch(LABELS, Z)])
    asyncio.run(service.close())
    assert not any(one.snapshots.all() for one in opened)
    again = Service(Settings(tmp_path, encoder=None))
    again.store.open_all()
    assert [entry.opened.at.seq for entry in again.store.entries.values()] == [4, 4, 4]
    asyncio.run(again.close())


def told(remote, after: int, count: int = 1) -> list[dict]:
    """The content of the next events of a stream, for a listener that has heard of samples up to a number."""
    headers, found = {"last-event-id": str(after)}, []
    with remote.client.http.stream("GET", f"/v1/streams/{remote.id}/events", headers=headers) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
            if len(found) == count:
                return found
    return found


def test_events_resume_after_the_last_one_and_say_what_is_missed(keyed):
    _, remote, _, _ = keyed
    first = remote.observe(stream(LABELS, 3, seed=1), key="a")
    second = remote.observe(stream(LABELS, 4, seed=2), key="b")
    (event,) = told(remote, after=first[1]["seq"])
    assert event["verdicts"] == [first[2], *second]
    (event,) = told(remote, after=-7)
    assert event["verdicts"][0]["seq"] == 0
    remote.observe(stream(LABELS, 2100, seed=4)[:2048], key="d")
    remote.observe(stream(LABELS, 64, seed=5), key="e")
    missed, event = told(remote, after=6, count=2)
    assert missed == {"first": 7, "last": 7 + 64 - 1}
    assert event["verdicts"][0]["seq"] == 7 + 64


def test_a_listener_that_heard_of_samples_that_are_not_there_hears_what_comes(keyed):
    _, remote, _, _ = keyed
    remote.observe(Z)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(told, remote, after=2**70)
        for number in range(100):  # until it listens
            if late.done():
                break
            remote.observe(stream(LABELS, 2, seed=number))
            time.sleep(0.05)
        (event,) = late.result(10)
    assert event["verdicts"][0]["seq"] >= 4
