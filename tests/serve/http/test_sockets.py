"""Observing over one connection: every message answered in order, learned once, and refused as a request would be."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import torch
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from helpers.service import Server
from helpers.streams import space, stream
from unseen.errors import ServiceError
from unseen.serve.client import Client
from unseen.serve.http.auth import ApiKeys
from unseen.serve.settings import Limits

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sockets")
    LABELS.save(made / "space")
    return made


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder / "data") as running:
        yield running


@pytest.fixture
def remote(server, folder):
    return server.client.create(folder / "space", detector="online")


def url(server, remote, query: str = "") -> str:
    return f"{server.url.replace('http', 'ws')}/v1/streams/{remote.id}/observe{query}"


def test_samples_sent_ahead_get_the_verdicts_of_requests_in_order(server, remote, folder):
    told = list(remote.flow(Z[:, None], window=64))
    assert [rows[0]["seq"] for rows in told] == list(range(300))
    other = server.client.create(folder / "space", detector="online")
    expected = [other.observe(part)[0]["margin"] for part in Z[:40].split(1)]
    assert [rows[0]["margin"] for rows in told[:40]] == pytest.approx(expected, abs=1e-4)
    assert remote.info()["counts"]["seen"] == 300


def test_a_message_sent_again_is_learned_once(server, remote):
    rows = Z[:3].numpy().tobytes()
    for repeated in (False, True):
        with connect(url(server, remote, "?session=s&first=7")) as socket:
            socket.send(rows)
            assert json.loads(socket.recv())["repeated"] is repeated
    assert remote.info()["seq"] == 3


def test_a_bad_message_is_answered_with_its_error_and_the_next_is_learned(server, remote):
    with connect(url(server, remote)) as socket:
        for message in (b"abc", json.dumps({"features": Z[:2].tolist()}), "{", json.dumps({"images": []})):
            socket.send(message)
        answers = [json.loads(socket.recv()) for _ in range(4)]
    assert [answer.get("code") for answer in answers] == ["features", None, "invalid", "invalid"]
    assert [row["seq"] for row in answers[1]["verdicts"]] == [0, 1]
    with connect(url(server, remote)) as socket:
        with suppress(ConnectionClosed):
            socket.send(b"x" * (2 << 20))  # over the size of a message
        with pytest.raises(ConnectionClosed):
            socket.recv()


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [("?first=-1", {}, 422), ("", {"origin": "http://evil.example"}, 403), ("", {"x-forwarded-for": "1.2.3.4"}, 403)],
)
def test_a_connection_is_refused_as_a_request_would_be(server, remote, query, headers, status):
    with pytest.raises(InvalidStatus) as caught:
        connect(url(server, remote, query), additional_headers=headers)
    assert caught.value.response.status_code == status


def test_a_connection_ends_with_its_stream(server, remote):
    with connect(url(server, remote)) as first:
        remote.delete()
        with pytest.raises(ConnectionClosed):
            first.recv(timeout=5)


def test_a_flow_goes_on_after_a_kill_and_a_revoked_key_ends_it(tmp_path):
    LABELS.save(tmp_path / "space")
    server = Server(tmp_path / "data").ready()
    remote = server.client.create(tmp_path / "space", detector="online")
    with Client(server.url) as client:
        told = client.stream(remote.id).flow(Z[:100, None], window=16)
        first = [next(told) for _ in range(30)]
        port = int(server.url.rpartition(":")[2])
        server.kill()
        with Server(tmp_path / "data", port=port, limits=Limits(sockets=1)) as again:
            rest = list(told)
            assert [rows[0]["seq"] for rows in first + rest] == list(range(100))
            assert again.client.stream(remote.id).info()["seq"] == 100
            keys = ApiKeys(tmp_path / "data" / "keys.json")
            text = keys.add("*", "observe")
            header = {"authorization": f"Bearer {text}"}
            with connect(url(again, remote), additional_headers=header) as socket:
                keys.revoke(text.split("_")[1])
                with pytest.raises(ConnectionClosed):
                    socket.recv(timeout=5)
            check_limit(again, tmp_path / "space", keys.add("tenant", "admin"))


def check_limit(server, file, key: str) -> None:
    """Check that an owner has as many connections as it may have."""
    with Client(server.url, key) as client:
        mine = client.create(file, detector="mcm")
        held = connect(url(server, mine), additional_headers={"authorization": f"Bearer {key}"})
        with held, pytest.raises(ServiceError, match="at most 1 sockets"):
            list(mine.flow([Z[:1]]))
