"""The service on Ray Serve with its actors in this process: who answers what, and what a repetition does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from helpers.streams import space, stream
from unseen.errors import ImageError
from unseen.scale import cluster
from unseen.scale.serve.directory import Directory
from unseen.scale.serve.gateway import Gateway
from unseen.scale.serve.placement import DIRECTORY, Placement
from unseen.scale.serve.transport import EncodedUpload
from unseen.serve.http.auth import ApiKeys
from unseen.serve.settings import Limits, Settings
from unseen.serve.work.encoding import content_digest

LABELS = space(dtype=torch.float32)
METHODS = ["GET", "POST", "DELETE"]


class Handle:
    """An object whose methods are called as an actor's: `handle.method.remote(...)` is awaitable."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.own, name))


class Died(Exception):
    pass


async def gone(*_: Any) -> None:
    """The error that Ray raises for an actor that died."""
    raise Died


class Cluster:
    """Named actors in one process."""

    exceptions = SimpleNamespace(RayActorError=Died, RayTaskError=ZeroDivisionError, RayError=Died)

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}
        self.made: list[str] = []

    def remote(self, kind: type) -> Any:
        def options(*, name: str, **_: Any) -> Any:
            def start(*arguments: Any) -> Any:
                if name not in self.actors:
                    self.made.append(name)
                    self.actors[name] = Handle(kind(*arguments))
                return self.actors[name]

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str, namespace: str) -> Any:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def get(self, what: Any, timeout: float | None = None) -> Any:
        return asyncio.run(what)

    def kill(self, actor: Any) -> None:
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}
        actor.own = SimpleNamespace(answer=gone, required_encoder=gone)

    def lose(self, key: str) -> None:
        """Let a writer's process die without a word: its files are closed, and who calls it is told so."""
        handle = self.actors.pop(f"unseen-{key}")
        store = handle.own.service.store
        store.entries[key].stream.journal.close()
        store.folder.close()
        self.kill(handle)


class FakeEncoders:
    """Encoders that never give the same bits twice."""

    def __init__(self) -> None:
        self.calls = 0

    async def encode(self, files: list[bytes], required: Any) -> Any:
        self.calls += 1
        if b"torn" in files:
            raise ImageError("expected images that can be read, got image 0; leave it out")
        seeds = [int.from_bytes(hashlib.sha256(data).digest()[:4], "big") for data in files]
        rows = np.stack([np.random.default_rng(seed).standard_normal(required.dim) for seed in seeds])
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6 * self.calls).astype(np.float32)
        return EncodedUpload(rows, tuple(b"small " + data for data in files), content_digest(files))


class Running:
    def __init__(self, ray: Cluster, data: Path, **limits: Any) -> None:
        self.ray, self.encoders = ray, FakeEncoders()
        self.placement = Placement(Settings(data, encoder=None, limits=Limits(**limits)))
        self.directory = self.placement.actor(self.ray, DIRECTORY, Directory).remote(self.placement)
        self.gateway = Gateway(self.placement, Handle(self.encoders))

    def app(self) -> Starlette:
        async def answer(request: Request) -> Any:
            return await self.gateway(request)

        return Starlette(routes=[Route("/{path:path}", answer, methods=METHODS)])


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    ray = Cluster()
    monkeypatch.setattr(cluster, "module", lambda: ray)
    return Running(ray, tmp_path / "data", body=1 << 20)


@pytest.fixture
def client(running: Running) -> Iterator[TestClient]:
    with TestClient(running.app(), base_url="http://127.0.0.1") as client:
        yield client
    running.ray.get(running.directory.close.remote())


@pytest.fixture
def path(client: TestClient, tmp_path: Path) -> str:
    """Where a new stream is."""
    LABELS.save(tmp_path / "space.safetensors")
    files = {"space": (tmp_path / "space.safetensors").read_bytes()}
    made = client.post("/v1/streams", files=files, data={"stream": '{"detector": "online"}'})
    assert made.status_code == 201, made.text
    assert made.json()["labels"]["names"] == 6  # its writer describes it
    return f"/v1/streams/{made.json()['id']}"


def rows(count: int, seed: int = 3) -> dict[str, Any]:
    return {"features": stream(LABELS, count, seed=seed).tolist()}


def images(*files: bytes) -> dict[str, Any]:
    return {"files": [("images", data) for data in files]}


def test_a_stream_has_one_writer_and_the_directory_answers_the_rest(
    running: Running, client: TestClient, path: str
) -> None:
    key = path.rsplit("/", 1)[1]
    assert running.ray.made == ["unseen-directory", f"unseen-{key}"]
    assert client.get("/v1/streams").json()["streams"][0]["id"] == key
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/").headers["content-type"].startswith("text/html")
    said = client.post(f"{path}/observe", json=rows(5)).json()["verdicts"]
    assert [row["seq"] for row in said] == list(range(5))
    assert client.get(path).json()["seq"] == 5
    assert client.get("/v1/streams/" + "0" * 16).status_code == 404
    assert "unseen_samples_total" in client.get("/metrics", params={"stream": key}).text


def test_a_dead_writer_is_started_again_and_a_repeated_observe_teaches_once(
    running: Running, client: TestClient, path: str
) -> None:
    key = path.rsplit("/", 1)[1]
    client.post(f"{path}/observe", json=rows(5))
    first = client.post(f"{path}/observe", json=rows(4, seed=9), headers={"idempotency-key": "mine"}).json()
    running.ray.lose(key)
    again = client.post(f"{path}/observe", json=rows(4, seed=9), headers={"idempotency-key": "mine"}).json()
    assert again["repeated"] is True
    assert again["verdicts"] == first["verdicts"]
    assert running.ray.made.count(f"unseen-{key}") == 2
    assert client.get(path).json()["seq"] == 9


def test_the_gateway_adds_an_idempotency_key_to_every_observe(running: Running, client: TestClient, path: str) -> None:
    writer = running.placement.find(running.ray, path.rsplit("/", 1)[1]).own
    kept = []
    answer = writer.answer

    async def twice(
        message: Any, encoded: Any = None
    ) -> Any:  # as Ray does when it cannot know whether a call was made
        kept.append(dict(message.headers).get(b"idempotency-key"))
        await answer(message, encoded)
        return await answer(message, encoded)

    writer.answer = twice
    for _ in range(2):
        client.post(f"{path}/observe", json=rows(5))
    client.post(f"{path}/observe", **images(b"one", b"two"))
    assert client.get(path).json()["seq"] == 12
    assert len(set(kept[:3])) == 3
    assert None not in kept[:3]
    assert kept[3] is None


def test_images_are_encoded_by_replicas_and_a_retry_is_recognised_by_its_files(
    running: Running, client: TestClient, path: str
) -> None:
    header = {"idempotency-key": "photos"}
    first, again = (client.post(f"{path}/observe", **images(b"one", b"two"), headers=header) for _ in range(2))
    assert again.json()["verdicts"] == first.json()["verdicts"]
    assert running.encoders.calls == 2
    assert client.get(f"{path}/pictures/1").content == b"small two"
    other = client.post(f"{path}/observe", **images(b"three"), headers=header)
    assert other.status_code == 422
    scored = client.post(f"{path}/score", json={"images": ["b25l"]})
    assert len(scored.json()["verdicts"]) == 1
    torn = client.post(f"{path}/observe", **images(b"torn"))
    assert (torn.status_code, torn.json()["error"]) == (422, "ImageError")
    assert client.get(path).json()["seq"] == 2


def test_a_caller_without_the_scope_reaches_no_encoder_and_other_web_sites_are_refused(
    running: Running, client: TestClient, path: str
) -> None:
    assert client.post(f"{path}/observe", json=rows(1), headers={"origin": "http://evil.example"}).status_code == 403
    reader = ApiKeys(running.placement.settings.data / "keys.json").add("*", "read")
    running.ray.lose(path.rsplit("/", 1)[1])  # its successor reads that there are keys now
    assert client.post(f"{path}/observe", **images(b"one")).status_code == 401
    bearer = {"authorization": f"Bearer {reader}"}
    assert client.post(f"{path}/observe", **images(b"one"), headers=bearer).status_code == 403
    assert running.encoders.calls == 0
    assert client.post(f"{path}/score", **images(b"one"), headers=bearer).status_code == 200


def test_large_bodies_and_missing_encoders_are_refused(running: Running, client: TestClient, path: str) -> None:
    assert client.post(f"{path}/observe", content=b"0" * (1 << 21)).status_code == 413
    running.gateway.encoders = None
    assert "without an encoder" in client.post(f"{path}/observe", **images(b"one")).json()["message"]


def test_deleting_a_stream_ends_its_writer_first(running: Running, client: TestClient, path: str) -> None:
    key = path.rsplit("/", 1)[1]
    client.post(f"{path}/observe", json=rows(5))
    assert client.delete(path).json() == {"deleted": key}
    assert list(running.ray.actors) == ["unseen-directory"]
    assert not (running.placement.settings.data / "streams" / key).exists()
    assert client.get(path).status_code == 404


def test_a_new_directory_finds_the_streams_and_a_second_service_is_refused(
    running: Running, client: TestClient, path: str
) -> None:
    from unseen.errors import StateError
    from unseen.serve.stream.folder import DataFolder
    from unseen.serve.stream.store import LocalStreams

    settings = running.placement.settings
    client.post(f"{path}/observe", json=rows(5))
    with pytest.raises(StateError, match="only service"):
        DataFolder(settings.data)
    running.ray.get(running.directory.close.remote())
    local = LocalStreams(DataFolder(settings.data), settings)  # what Ray wrote, `unseen serve` reads
    local.open_all()
    assert local.entries[path.rsplit("/", 1)[1]].stream.at.seq == 5
    local.close()
    running.ray.actors.clear()
    running.directory = running.placement.actor(running.ray, DIRECTORY, Directory).remote(running.placement)
    running.gateway = Gateway(running.placement)
    assert client.get(path).json()["seq"] == 5


def test_the_directory_reports_a_damaged_stream(running: Running, client: TestClient, path: str) -> None:
    key = path.rsplit("/", 1)[1]
    running.ray.get(running.directory.close.remote())
    (running.placement.settings.data / "streams" / key / "stream.json").write_text("{}")
    running.ray.actors.clear()
    running.directory = running.placement.actor(running.ray, DIRECTORY, Directory).remote(running.placement)
    running.gateway = Gateway(running.placement)
    assert client.get("/v1/streams").json()["streams"][0]["status"] == "damaged"
    assert client.post(f"{path}/observe", json=rows(1)).status_code == 503
