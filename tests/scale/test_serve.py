"""One service on a local Ray; one whose nodes die is in test_nodes.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from helpers.streams import space, stream
from unseen.errors import ServiceError, SettingError
from unseen.scale.serve.placement import Placement
from unseen.serve.client import Client, Remote
from unseen.serve.settings import Durability, Settings

deploy = pytest.importorskip("unseen.scale.serve.deploy")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray Serve warns of its own doings

LABELS = space(dtype=torch.float32)


class Running(NamedTuple):
    placement: Any
    client: Client
    remote: Remote


@pytest.fixture(scope="module")
def running(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("service")
    LABELS.save(folder / "space.safetensors")
    placement = Placement(Settings(folder / "data", encoder=None, durability=Durability(every=100)))
    port = deploy.free_port("127.0.0.1")
    stop = deploy.deploy(ray, placement, port=port)
    try:
        with Client(f"http://127.0.0.1:{port}", timeout=120) as client:
            yield Running(placement, client, client.create(folder / "space.safetensors", detector="online"))
    finally:
        stop()
        deploy.shutdown()


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
