"""Connections and bodies of strangers: bounded before anything is parsed, and never in the way of others."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time

import httpx
import pytest
import torch

from helpers.service import Server
from helpers.streams import space, stream
from unseen.errors import ServiceError
from unseen.serve.client import Client
from unseen.serve.http.auth import ApiKeys
from unseen.serve.http.protocol import OpenConnections
from unseen.serve.settings import Limits
from unseen.serve.work.shares import Shares

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 8)
LIMITS = Limits(
    connections=24,
    reserved=6,
    requests=8,
    headers=16 << 10,
    header_seconds=1.0,
    body_seconds=5.0,
    body=4 << 20,
    buffered=1 << 20,
    buffered_each=512 << 10,
    json_values=2_000,
    json=128 << 10,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("connections") / "data"
    LABELS.save(path.parent / "space")
    return path


@pytest.fixture(scope="module")
def keys(data):
    made = ApiKeys(data / "keys.json")
    return {owner: made.add(owner, "admin") for owner in ("a", "b", "*")}


@pytest.fixture(scope="module")
def server(data, keys):
    with Server(data, limits=LIMITS) as running:
        yield running


@pytest.fixture(scope="module")
def remotes(server, keys, data):
    with contextlib.ExitStack() as stack:
        clients = {owner: stack.enter_context(Client(server.url, key, retries=0)) for owner, key in keys.items()}
        yield {owner: client.create(data.parent / "space", detector="online") for owner, client in clients.items()}


def connect(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def received(connection) -> bytes:
    """What comes until the connection ends."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("what", ["one long value", "many headers", "a long path", "trailers"])
def test_headers_over_the_limit_end_the_connection(server, what):
    with connect(server) as stranger:
        stranger.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" if what != "a long path" else b"GET /")
        if what == "trailers":
            stranger.sendall(b"transfer-encoding: chunked\r\n\r\n0\r\n")
        piece = b"x: y\r\n" * 170 if what == "many headers" else b"a" * 1024
        if what in ("one long value", "trailers"):
            stranger.sendall(b"x: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 4 << 20:
                stranger.sendall(piece)
                sent += len(piece)
        assert sent < 4 << 20, "the service read megabytes of headers"
        answer = received(stranger)
        assert what == "trailers" or not answer or b" 431 " in answer


@pytest.mark.timing
def test_a_connection_without_a_whole_header_ends_in_time(server):
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nhost")
        started = time.perf_counter()
        for one in (silent, slow):
            received(one)
        assert time.perf_counter() - started < 4


@pytest.mark.timing
def test_a_kept_connection_may_be_idle_longer_than_a_header_may_take(server):
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/healthz").status_code == 200
        time.sleep(1.3)
        assert client.get("/healthz").status_code == 200
    with connect(server) as kept:
        for _ in range(2):
            kept.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            answer = b""
            while b'"ok"' not in answer:
                answer += kept.recv(4096)
            assert b"200 OK" in answer
            time.sleep(1.3)


def test_a_flood_of_health_checks_is_slowed_and_never_refused(tmp_path):
    with Server(tmp_path / "data", limits=Limits(reads=2)) as calm, httpx.Client(base_url=calm.url) as client:
        started = time.perf_counter()
        assert {client.get("/healthz").status_code for _ in range(10)} == {200}
        assert time.perf_counter() - started > 1


def test_idle_connections_make_room_for_requests(server, remotes):
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(server))
        assert len(remotes["a"].score(Z[:2])) == 2
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_the_listeners_of_one_owner_leave_room_for_others_and_for_health(server, keys, remotes):
    line = f"GET /v1/streams/{remotes['a'].id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    line += f"authorization: Bearer {keys['a']}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        statuses = []
        for _ in range(20):
            listener = stack.enter_context(connect(server))
            listener.sendall(line.encode())
            statuses.append(int(listener.recv(64).split()[1]))
        assert statuses.count(200) == 8
        assert set(statuses) == {200, 429}
        assert len(remotes["b"].score(Z[:2])) == 2
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_the_operator_is_served_when_all_common_slots_are_taken(server, keys, remotes):
    with contextlib.ExitStack() as stack:
        for owner in ("a", "b"):
            for _ in range(8):
                busy = stack.enter_context(connect(server))
                busy.sendall(slow_body(remotes[owner], keys[owner]))
        for _ in range(2):
            stack.enter_context(connect(server)).sendall(slow_body(remotes["*"], keys["*"]))
        time.sleep(0.3)
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert remotes["*"].info()["seq"] == 0
    for owner in ("a", "b"):  # until it is noticed that they have gone
        assert len(eventually(lambda owner=owner: remotes[owner].score(Z[:2]))) == 2


def slow_body(remote, key, *, size: int = 4096, kind: str = "application/octet-stream") -> bytes:
    return (
        f"POST /v1/streams/{remote.id}/score HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {size}\r\ncontent-type: {kind}\r\n\r\n"
    ).encode()


def test_a_body_whose_length_is_over_the_limit_is_refused_unread(server, keys, remotes):
    with connect(server) as large:
        large.sendall(slow_body(remotes["a"], keys["a"], size=5 << 20))
        assert b" 413 " in large.recv(4096)


def test_bodies_in_flight_are_bounded_for_an_owner_and_another_goes_on(server, keys, remotes):
    with contextlib.ExitStack() as stack:
        waiting, answers = [stack.enter_context(connect(server)) for _ in range(4)], []
        for busy in waiting:
            busy.sendall(slow_body(remotes["a"], keys["a"], size=400 << 10) + bytes(300 << 10))
        while len(answers) < 3:
            answered, _, _ = select.select(waiting, [], [], 10)
            assert answered, "fewer than three were refused"
            answers += [busy.recv(4096) for busy in answered]
            waiting = [busy for busy in waiting if busy not in answered]
        assert len(waiting) == 1
        assert all(b" 429 " in answer and b"retry-after" in answer for answer in answers)
        assert len(remotes["b"].score(Z[:2])) == 2
    assert len(eventually(lambda: remotes["a"].score(Z[:2]))) == 2, "what was taken was not given back"


def eventually(ask):
    """An answer, once a caller is not refused any more."""
    for _ in range(100):
        with contextlib.suppress(ServiceError):
            return ask()
        time.sleep(0.1)
    return ask()


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"features": [[0.0] * LABELS.dim] * 1000}),
        '{"features":' + "[" * 100_000,
        json.dumps({"keys": [1] * 100_000}),
        json.dumps({"features": {str(i): i for i in range(3000)}}),
        json.dumps({"images": ["A" * (200 << 10)]}),
    ],
    ids=["rows", "brackets", "keys", "fields", "bytes"],
)
def test_json_of_too_many_values_is_refused_unparsed_and_names_the_fast_way(server, keys, remotes, body, monkeypatch):
    headers = {"authorization": f"Bearer {keys['a']}", "content-type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/streams/{remotes['a'].id}/score", content=body, headers=headers)
    assert answer.status_code == 413
    assert "application/octet-stream" in answer.json()["message"]


@pytest.mark.timing
def test_large_json_of_one_owner_does_not_stall_another(data, tmp_path):
    """Parse as many values as are allowed, again and again, and look how long a neighbour waits at most."""
    with Server(tmp_path / "data") as server:
        remote = server.client.create(data.parent / "space", detector="online")
        body = json.dumps({"features": [[0.1] * LABELS.dim] * 2000, "keys": ["k"] * 2000}).encode()
        stop, alone = threading.Event(), slowest_health(server)

        def flood():
            with httpx.Client(base_url=server.url, timeout=30) as client:
                while not stop.is_set():
                    client.post(
                        f"/v1/streams/{remote.id}/score", content=body, headers={"content-type": "application/json"}
                    )

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            beside = slowest_health(server)
        finally:
            stop.set()
            thread.join(30)
    assert beside < 1.0 + 5 * alone


def slowest_health(server) -> float:
    """The longest of many waits for an answer that takes no work."""
    slowest = 0.0
    for _ in range(30):
        started = time.perf_counter()
        assert server.client.http.get("/healthz").status_code == 200
        slowest = max(slowest, time.perf_counter() - started)
    return slowest


def test_shares_are_taken_and_given_back():
    shares = Shares(total=10, each=6, what="bytes")
    with shares.held("a", 6), shares.held("b", 4):
        with pytest.raises(ServiceError, match="expected at most 6 bytes") as own:
            shares.take("a", 1)
        with pytest.raises(ServiceError, match="expected at most 10 bytes of all callers") as common:
            shares.take("c", 1)
        assert (own.value.status, common.value.status) == (429, 503)
    with shares.held("c", 6):
        pass
    assert not shares.taken


def test_the_connection_that_was_idle_longest_makes_room():
    room = OpenConnections[str](3)
    assert [room.add(name) for name in "abc"] == [None] * 3
    room.mark("a", is_idle=False)
    assert room.add("d") == "b"
    room.remove("b")
    room.mark("a", is_idle=True)  # later than c and d
    assert room.add("e") == "c"
    room.remove("c")
    for name in "ade":
        room.mark(name, is_idle=False)
    assert room.add("f") == "f"  # all others are busy
    room.remove("f")
    room.mark("f", is_idle=True)  # of one that is gone, nothing is kept
    assert len(room) == 3


@pytest.mark.timing
def test_a_burst_of_connections_does_not_stall_the_service(tmp_path):
    """Each used to look at all others: a thousand took seconds, and a flood of them all there is."""
    with Server(tmp_path / "data", limits=Limits(connections=1500)) as burst:
        first = slowest_burst(burst, 100)
        assert slowest_burst(burst, 1400) < 14 * first + 1


def slowest_burst(server, count: int) -> float:
    """How long health takes right after many connections."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connect(server)).sendall(b"GET / HTTP/1.1\r\nx: ")
        started = time.perf_counter()
        assert httpx.get(f"{server.url}/healthz", timeout=30).status_code == 200
        return time.perf_counter() - started


def test_a_handshake_that_announces_a_body_is_refused_and_not_waited_for(server):
    head = "GET /v1/streams/a/observe HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    head += "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\ncontent-length: 5\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read()  # until it is closed
    assert answer.startswith(b"HTTP/1.1 400 ")
