"""Slow, large, absent and deaf clients: each is refused or ignored without delaying the others."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import pytest
import torch

from helpers.service import LABELS, Client, Limits, Server
from helpers.streams import space, stream

Z = stream(LABELS, 300)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    data = tmp_path_factory.mktemp("impatient")
    LABELS.save(data / "space")
    (data / "data" / "spaces").mkdir(parents=True, mode=0o700)
    space(negative=8000, dim=512, dtype=torch.float32).save(data / "data" / "spaces" / "large.safetensors")
    limits = Limits(body_seconds=1.5, write_seconds=1, body=200_000, listeners=2)
    with Server(data / "data", limits=limits) as server:
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


def test_a_reader_that_takes_nothing_of_its_answer_for_a_while_loses_its_connection(impatient):
    server, _ = impatient
    large = server.client.create(space="large", detector="mcm")
    with raw(server) as deaf:
        deaf.sendall(f"GET /v1/streams/{large.id}/space HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        assert deaf.recv(12) == b"HTTP/1.1 200"
        time.sleep(5)  # the system looks at the time when it asks for room: after one second, two at most
        took, size = 0, 8000 * 512 * 4
        with suppress(ConnectionError):
            while took < size and (part := deaf.recv(1 << 20)):
                took += len(part)
    assert took < size


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
