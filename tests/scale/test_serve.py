"""One service on a local Ray: starting its processes is most of the time, so the tests share it and its one stream."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from helpers.service import downloaded, flat, reference, same
from helpers.streams import space, stream
from unseen.errors import ServiceError, SettingError
from unseen.scale.serve.placement import Placement
from unseen.serve.client import Client, Remote
from unseen.serve.settings import Durability, Settings
from unseen.serve.stream.config import StreamConfig

deploy = pytest.importorskip("unseen.scale.serve.deploy")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray Serve warns of its own doings

LABELS = space(dtype=torch.float32)


class Running(NamedTuple):
    ray: Any
    placement: Any
    client: Client
    remote: Remote

    def kill_writer(self) -> None:
        os.kill(self.ray.get(self.placement.find(self.ray, self.remote.id).pid.remote()), signal.SIGKILL)


@pytest.fixture(scope="module")
def running(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("service")
    LABELS.save(folder / "space.safetensors")
    placement = Placement(Settings(folder / "data", encoder=None, durability=Durability(every=100)))
    port = deploy.free_port("127.0.0.1")
    stop = deploy.deploy(ray, placement, port=port)
    try:
        with Client(f"http://127.0.0.1:{port}", timeout=120) as client:
            yield Running(ray, placement, client, client.create(folder / "space.safetensors", detector="online"))
    finally:
        stop()
        deploy.shutdown()


def test_a_writer_that_is_killed_loses_nothing_and_learns_nothing_twice(running: Running, tmp_path: Path) -> None:
    remote, said = running.remote, []
    parts = [*(stream(LABELS, 40, seed=part) for part in range(4)), stream(LABELS, 8)]
    for number, part in enumerate(parts):
        said.extend(remote.observe(part, key=f"part {number}"))
        if number == 2:  # a snapshot stands at 120 at the earliest: what follows is replayed
            running.kill_writer()
    assert [verdict["seq"] for verdict in said] == list(range(168))
    running.kill_writer()
    assert remote.observe(parts[-1], key="part 4") == said[-8:]  # told again, not taught again
    learned = downloaded(remote, LABELS, tmp_path / "state.safetensors")
    assert same(learned, flat(reference(StreamConfig("", "", "*", "online"), LABELS, parts)))


def test_the_service_answers_as_the_local_one_does(running: Running) -> None:
    client, remote = running.client, running.remote
    assert client.call("GET", "/healthz")["status"] == "ok"
    assert [shown["id"] for shown in client.streams()] == [remote.id]
    assert remote.info()["labels"]["names"] == 6
    with pytest.raises(ServiceError, match="rows of 16"):
        remote.observe(torch.ones(2, 3))
    with pytest.raises(ServiceError, match="without an encoder"):
        remote.observe_images([b"hello"])
    before = remote.info()["seq"]
    path = f"/v1/streams/{remote.id}"
    with client.http.stream("GET", f"{path}/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        # without a key of the caller's: the gateway makes one
        rows = {"features": stream(LABELS, 3).tolist()}
        httpx.post(client.http.base_url.join(f"{path}/observe"), json=rows, timeout=60).raise_for_status()
        said = next(line for line in events.iter_lines() if line.startswith("data: "))
    assert '"verdicts"' in said
    assert remote.info()["seq"] == before + 3
    counted = client.http.get("/metrics", params={"stream": remote.id}).text
    assert f'unseen_samples_total{{stream="{remote.id}"' in counted
    remote.delete()
    assert not (running.placement.settings.data / "streams" / remote.id).exists()
    with pytest.raises(ServiceError, match="expected the id of one of your streams"):
        remote.info()


def test_an_address_others_can_reach_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="unseen keys add"):
        deploy.deploy(None, Placement(Settings(tmp_path, "0.0.0.0")), port=1)
