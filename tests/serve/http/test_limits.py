"""Slow, large, absent and deaf clients: each is refused or ignored without delaying the others."""

from __future__ import annotations

import socket

import pytest

from helpers.service import LABELS, Client, Limits, Server
from helpers.streams import stream

Z = stream(LABELS, 300)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    data = tmp_path_factory.mktemp("impatient")
    LABELS.save(data / "space")
    with Server(data / "data", limits=Limits(body_seconds=1.5, body=200_000, listeners=2)) as server:
        yield server, server.client.create(data / "space", detector="online")


def raw(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def request(remote, size: int, key: str = "key") -> bytes:
    return (
        f"POST /v1/streams/{remote.id}/observe HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n"
        f"content-type: application/octet-stream\r\nidempotency-key: {key}\r\n\r\n"
    ).encode()


def test_a_slow_client_gets_408_while_others_are_served(impatient):
    server, remote = impatient
    seq = remote.info()["seq"]
    with raw(server) as slow:
        slow.sendall(request(remote, 640) + b"half")
        assert len(remote.score(Z[:5])) == 5
        assert b" 408 " in slow.recv(4096)
    assert remote.info()["seq"] == seq


def test_a_request_of_a_client_that_disconnects_is_learned_once_or_not_at_all(impatient):
    server, remote = impatient
    body = Z[:4].numpy().tobytes()
    for number in range(10):
        with raw(server) as gone:
            gone.sendall(request(remote, len(body), f"gone {number}") + body)
    said = [remote.observe(Z[:4], key=f"gone {number}") for number in range(10)]
    numbers = [row["seq"] for rows in said for row in rows]
    assert len(set(numbers)) == 40
    assert remote.info()["seq"] == max(numbers) + 1


def test_a_body_over_the_limit_is_refused(impatient):
    server, remote = impatient
    with raw(server) as large:
        large.sendall(request(remote, 10**9) + b"x" * 300_000)
        assert b" 413 " in large.recv(4096)


def test_listeners_are_limited_and_one_that_does_not_read_delays_nobody(impatient):
    server, remote = impatient
    line = f"GET /v1/streams/{remote.id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    with raw(server) as first, raw(server) as second:
        for deaf in (first, second):
            deaf.sendall(line)
            assert b"200" in deaf.recv(64)
        with Client(server.url) as client:
            assert client.http.get(f"/v1/streams/{remote.id}/events").status_code == 429
        for start in range(0, 300, 10):
            remote.observe(Z[start : start + 10])
