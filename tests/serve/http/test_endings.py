"""Responses without end are ended: by a deletion, a revoked key and a stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from functools import partial

import httpx
import pytest
import torch

from helpers.service import Server
from helpers.streams import space, stream
from unseen.serve.client import Client
from unseen.serve.http.auth import ApiKeys
from unseen.serve.http.service import Service
from unseen.serve.settings import Settings
from unseen.serve.stream.batch import sample_batch
from unseen.serve.stream.config import StreamConfig

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 4)


@pytest.fixture
def keyed(tmp_path):
    LABELS.save(tmp_path / "space")
    keys = ApiKeys(tmp_path / "data" / "keys.json")
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
    thread.join(3)
    assert not thread.is_alive()


def test_events_end_when_the_key_is_revoked(keyed):
    server, remote, keys, text = keyed
    thread, _ = listener(server, remote, text)
    keys.revoke(text.split("_")[1])
    thread.join(8)
    assert not thread.is_alive()


def test_a_stop_ends_events_and_takes_less_than_ten_seconds(keyed):
    server, remote, _, text = keyed
    thread, _ = listener(server, remote, text)
    remote.observe(Z)
    started = time.perf_counter()
    os.kill(server.process.pid, signal.SIGTERM)
    server.process.join(12)
    assert time.perf_counter() - started < 10
    assert server.process.exitcode in (0, -signal.SIGTERM)  # uvicorn stops in order, then raises the signal again
    thread.join(1)
    assert not thread.is_alive()


def test_a_stop_does_not_wait_for_mining_or_streams_not_yet_opened(tmp_path):
    first = Service(Settings(tmp_path, encoder=None))
    for _ in range(3):
        first.store.create(LABELS, StreamConfig("", "", "*", "online"))
    asyncio.run(first.close())
    service, gate = Service(Settings(tmp_path, encoder=None)), threading.Event()
    mining = [service.encoder._mining.submit("a", partial(gate.wait, 60)) for _ in range(3)]
    service.store.stopping = True
    service.store.open_all()
    started = time.perf_counter()
    asyncio.run(service.close())
    assert time.perf_counter() - started < 5
    assert mining[-1].cancelled()
    gate.set()


def test_a_stop_takes_no_more_snapshots_after_a_while(tmp_path, monkeypatch):
    service = Service(Settings(tmp_path, encoder=None))
    opened = [service.store.create(LABELS, StreamConfig("", "", "*", "online")).opened for _ in range(3)]
    for one in opened:
        one.observe([sample_batch(LABELS, Z)])
    monkeypatch.setattr("unseen.serve.stream.store.STOP_SECONDS", -1)
    asyncio.run(service.close())
    assert not any(one.snapshots.all() for one in opened)
    again = Service(Settings(tmp_path, encoder=None))
    again.store.open_all()
    assert [entry.opened.at.seq for entry in again.store.entries.values()] == [4, 4, 4]
    asyncio.run(again.close())
