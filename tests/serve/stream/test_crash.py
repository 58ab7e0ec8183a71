"""Kill the service at random moments under load: nothing acknowledged is lost, nothing is learned twice."""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import replace

import httpx
import torch

from helpers.service import CONFIG, LABELS, Client, Server, blocks, create, different, downloaded, learned, same
from helpers.streams import stream
from unseen.errors import ServiceError


class Load:
    """Callers that send batches with keys, remember what was acknowledged, and bring the rest again next time."""

    def __init__(self, key: str, callers: int) -> None:
        self.key = key
        self.acknowledged: dict[int, torch.Tensor] = {}
        self.requests = 0
        self.told_twice = 0
        self._open: list = [None] * callers
        self._stop = threading.Event()

    def run(self, url: str, requests: int, seconds: float, kill) -> None:
        """Call until so many requests more were acknowledged, and kill so many seconds later, amid the next ones."""
        threads = [threading.Thread(target=self._call, args=(url, caller)) for caller in range(len(self._open))]
        for thread in threads:
            thread.start()
        wanted, stop = self.requests + requests, time.monotonic() + 10
        while self.requests < wanted and time.monotonic() < stop:
            time.sleep(0.002)
        time.sleep(seconds)
        kill()
        for thread in threads:
            thread.join(20)

    def finish(self, url: str) -> None:
        self._stop.set()
        for caller, waiting in enumerate(self._open):
            if waiting:
                self._call(url, caller)

    def _call(self, url: str, caller: int) -> None:
        choice = random.Random(f"{caller} {self.requests}")
        with Client(url, retries=0, timeout=10) as client:
            remote = client.stream(self.key)
            while True:
                seed = choice.randrange(1 << 30)
                key, z = self._open[caller] or (uuid.uuid4().hex, stream(LABELS, choice.randint(1, 12), seed=seed))
                self._open[caller] = key, z
                try:
                    said = remote.observe(z, key=key)
                except (httpx.TransportError, ServiceError):
                    return
                self._note(said, z)
                self._open[caller] = None
                if self._stop.is_set():
                    return

    def _note(self, said, z) -> None:
        self.requests += 1
        for row, sample in zip(said, z, strict=True):
            self.told_twice += row["seq"] in self.acknowledged
            self.acknowledged[row["seq"]] = sample


def check(load: Load, remote, data, detector: str) -> None:
    parts = blocks(data / "streams" / remote.id, torch.float32, LABELS.dim)
    journal = torch.cat(parts)
    assert not load.told_twice
    for seq, sample in load.acknowledged.items():
        assert torch.equal(journal[seq], sample), f"sample {seq} was acknowledged and is not in the journal"
    assert not different(downloaded(remote), learned(parts, replace(CONFIG, detector=detector)))


def test_eight_kills_lose_nothing_and_learn_nothing_twice(tmp_path):
    choice, data, detector, load = random.Random(0), tmp_path / "data", "default", None
    for _ in range(8):
        server = Server(data, every=60, retain=10**7).ready()
        load = load or Load(create(server.client, detector=detector).id, callers=4)
        if load.acknowledged:
            check(load, server.client.stream(load.key), data, detector)
        load.run(server.url, choice.randrange(12), choice.uniform(0, 0.1), server.kill)
    with Server(data, every=60, retain=10**7) as server:
        load.finish(server.url)
        remote = server.client.stream(load.key)
        check(load, remote, data, detector)
        # every request has been acknowledged by now, so one learned twice would be one too many
        assert remote.info()["seq"] == len(load.acknowledged)
    assert load.requests > 20


def test_the_journal_stays_small_and_kills_between_snapshots_change_no_bit(tmp_path):
    data, z, sent, key = tmp_path / "data", stream(LABELS, 2400), [], None
    for _ in range(3):
        server = Server(data, every=100).ready()
        remote = server.client.stream(key) if key else create(server.client)
        key = remote.id
        for _ in range(40):
            part = z[len(sent) * 20 :][:20]
            remote.observe(part)
            sent.append(part)
        expected = learned(sent)
        assert same(downloaded(remote), expected)
        server.kill()
    with Server(data, every=100) as server:
        info = server.client.stream(key).info()
        assert same(downloaded(server.client.stream(key)), expected)
    assert info["replayed"] < 1000
    assert len(info["snapshots"]) == 2
    kept = sum(map(len, blocks(data / "streams" / key, torch.float32, LABELS.dim)))
    assert kept < 1500 < info["seq"]
