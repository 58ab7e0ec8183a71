"""Kill the service at random moments under load: nothing acknowledged is lost, nothing is learned twice."""

from __future__ import annotations

import random
import threading
import time
import uuid

import httpx
import pytest
import torch

from helpers.service import LABELS, Client, Server, StreamConfig, blocks, different, downloaded, flat, reference, same
from helpers.streams import stream
from unseen.errors import ServiceError

CONFIG = StreamConfig("", "", "*", "online")


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


def check(load: Load, config, remote, folder, path) -> None:
    parts = blocks(folder / remote.id, torch.float32, LABELS.dim)
    journal = torch.cat(parts)
    assert not load.told_twice
    for seq, sample in load.acknowledged.items():
        assert torch.equal(journal[seq], sample), f"sample {seq} was acknowledged and is not in the journal"
    assert not different(downloaded(remote, LABELS, path), flat(reference(config, LABELS, parts)))


def hammered(tmp_path, kills: int, *, seed: int, detector: str) -> Load:
    choice, load, data, remote = random.Random(seed), None, tmp_path / "data", None
    config = StreamConfig("", "", "*", detector)
    LABELS.save(tmp_path / "space")
    for _ in range(kills):
        server = Server(data, every=60, retain=10**7).ready()
        remote = (
            server.client.stream(remote.id) if remote else server.client.create(tmp_path / "space", detector=detector)
        )
        load = load or Load(remote.id, callers=4)
        if load.acknowledged:
            check(load, config, remote, data / "streams", tmp_path / "state")
        load.run(server.url, choice.randrange(12), choice.uniform(0, 0.1), server.kill)
    with Server(data, every=60, retain=10**7) as server:
        load.finish(server.url)
        remote = server.client.stream(remote.id)
        check(load, config, remote, data / "streams", tmp_path / "state")
        # every request has been acknowledged by now, so one learned twice would be one too many
        assert remote.info()["seq"] == len(load.acknowledged)
    return load


def test_eight_kills_lose_nothing_and_learn_nothing_twice(tmp_path):
    load = hammered(tmp_path, 8, seed=0, detector="default")
    assert load.requests > 20


@pytest.mark.slow
@pytest.mark.parametrize("detector", ["default", "online"])
def test_a_hundred_kills_lose_nothing_and_learn_nothing_twice(tmp_path, detector):
    load = hammered(tmp_path, 100, seed=1, detector=detector)
    print(f"\n100 kills, {load.requests} requests, {len(load.acknowledged)} samples acknowledged")


def test_the_journal_stays_small_and_kills_between_snapshots_change_no_bit(tmp_path):
    LABELS.save(tmp_path / "space")
    data, z, sent, key = tmp_path / "data", stream(LABELS, 3000), [], None
    largest = 0
    for _ in range(3):
        server = Server(data, every=100).ready()
        remote = server.client.stream(key) if key else server.client.create(tmp_path / "space", detector="online")
        key = remote.id
        for _ in range(40):
            part = z[len(sent) * 20 :][:20]
            remote.observe(part)
            sent.append(part)
        largest = max(largest, remote.info()["journal_bytes"])
        expected = flat(reference(CONFIG, LABELS, sent))
        assert same(downloaded(remote, LABELS, tmp_path / "state"), expected)
        server.kill()
    with Server(data, every=100) as server:
        info = server.client.stream(key).info()
        assert same(downloaded(server.client.stream(key), LABELS, tmp_path / "state"), expected)
    assert info["replayed"] < 1000
    assert len(info["snapshots"]) == 2
    kept = sum(map(len, blocks(data / "streams" / key, torch.float32, LABELS.dim)))
    assert kept < 1500 < info["seq"]


def test_reset_and_restore_survive_a_kill(tmp_path):
    LABELS.save(tmp_path / "space")
    z = stream(LABELS, 100)
    server = Server(tmp_path / "data", every=30).ready()
    remote = server.client.create(tmp_path / "space", detector="online")
    remote.observe(z[:20])
    snapshot = remote.snapshot()
    remote.observe(z[20:40])
    remote.reset()
    remote.observe(z[40:50])
    remote.restore(snapshot)
    remote.observe(z[50:60])
    before = downloaded(remote, LABELS, tmp_path / "before")
    server.kill()
    sent = z
    assert same(before, flat(reference(CONFIG, LABELS, [sent[:20], sent[50:60]])))
    with Server(tmp_path / "data", every=30) as server:
        remote = server.client.stream(remote.id)
        assert same(before, downloaded(remote, LABELS, tmp_path / "after"))
        assert remote.info()["seq"] == 60
