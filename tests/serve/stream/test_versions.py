"""Data folders that 0.1 and 0.2 left after a kill: streams go on or are refused by name, keys are taken over."""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.service import Client, Server, StreamConfig, read_config
from helpers.streams import space, stream
from unseen.errors import ServiceError, StateError

OLD = Path(__file__).parents[2] / "data"
EXPECTED: dict[str, Any] = json.loads((OLD / "v0.1" / "service.json").read_text())
Z = stream(space(dtype=torch.float32), 60)


def unpacked(version: str, folder: Path) -> Path:
    with tarfile.open(OLD / version / "service.tar.xz") as file:
        file.extractall(folder, filter="data")
    return folder / "data"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return unpacked("v0.1", tmp_path)


@pytest.mark.parametrize("detector", ["online", "mcm"])
def test_a_stream_of_version_01_goes_on_with_the_same_margins(data: Path, detector: str) -> None:
    expected = EXPECTED[detector]
    with Server(data) as server:
        remote = server.client.stream(expected["id"])
        info = remote.info()
        assert (info["status"], info["seq"], info["replayed"], info["faults"]) == ("ready", 50, 30, [])
        assert [row["margin"] for row in remote.score(Z[50:])] == pytest.approx(expected["margin"], abs=1e-4)
        assert info["threshold"]["value"] == pytest.approx(expected["threshold"], abs=1e-4)
        retried = remote.observe(Z[40:50], key="at 40")
        # from the receipt, not learned again
        assert [row["margin"] for row in retried] == pytest.approx(expected["last"], abs=1e-4)
        assert remote.observe(Z[50:])[-1]["seq"] == 59


def test_streams_and_keys_of_version_02_go_on_and_what_had_another_state_learns_again(tmp_path: Path) -> None:
    expected = json.loads((OLD / "v0.2" / "service.json").read_text())
    data = unpacked("v0.2", tmp_path)
    with Server(data) as server, Client(server.url, expected["key"]) as client:
        for detector, faults in (("online", 0), ("pooled", 1)):
            remote = client.stream(expected[detector]["id"])
            info = remote.info()
            assert (info["status"], info["seq"], len(info["faults"])) == ("ready", 50, faults)
            margins = [row["margin"] for row in (*remote.observe(Z[30:50], key="second"), *remote.score(Z[50:]))]
            before = expected[detector]["last"] + expected[detector]["margin"]
            assert (margins == pytest.approx(before, abs=1e-4)) == (detector == "online")
            assert remote.observe(Z[50:])[-1]["seq"] == 59
        assert "as unseen 0.2.0 wrote it" in info["faults"][0]
    assert not (data / "keys.json").exists()


def test_a_stream_of_version_01_with_the_detector_default_is_refused_and_the_others_go_on(data: Path) -> None:
    id = EXPECTED["default"]["id"]
    with Server(data) as server:
        server.client.retries = 0
        rows = {row["detector"]: row for row in server.client.streams()}
        assert [rows[name]["status"] for name in ("online", "mcm", "default")] == ["ready", "ready", "refused"]
        assert "go on with unseen 0.1, or create a new stream" in rows["default"]["reason"]
        with pytest.raises(ServiceError, match=r"one of 0\.1 with the detector `default`") as caught:
            server.client.stream(id).observe(Z[:1])
        assert caught.value.status == 503
        assert server.client.call("GET", "/readyz")["streams"]["refused"] == 1
        made = server.client.create(data / "streams" / id / "space.safetensors")  # the remedy works
        assert made.info()["detector"] == "pooled"


def test_the_config_of_a_newer_version_is_refused_with_a_remedy(tmp_path: Path) -> None:
    body = json.dumps(asdict(StreamConfig("0" * 16, "", "*", "online", format=99)) | {"unheard": 1})
    digest = hashlib.sha256(body.encode()).hexdigest()
    (tmp_path / "stream.json").write_text(json.dumps({"stream": body, "sha256": digest}))
    assert "install the unseen that made it" in read_config(tmp_path).refusal


def test_an_altered_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stream.json").write_text('{"stream": "{}", "sha256": "0"}')
    with pytest.raises(StateError, match=r"expected a whole stream\.json"):
        read_config(tmp_path)
