"""Odd but possible requests, clients and moments: each gets the answer it should, and delays nobody."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
import torch
from starlette.testclient import TestClient

from helpers.service import (
    CONFIG,
    LABELS,
    Client,
    Limits,
    Server,
    Service,
    Settings,
    create,
    create_app,
    open_store,
    sample_batch,
)
from helpers.streams import space, stream
from unseen import LabelSpace, Session
from unseen.errors import FeatureError, ServiceError

Z = stream(LABELS, 300)


OPTIONS = {"limits": Limits(body_seconds=1.5, write_seconds=1, body=200_000, listeners=2)}


def raw(server, text: str) -> bytes:
    with server.connect() as connection:
        connection.sendall(text.replace("\r\n", "\r\nconnection: close\r\n", 1).encode("latin-1"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


HOSTS = ("[", "[::1", "127.0.0.1:port", "a]b", "")
OTHERS = (
    *("origin: http://[", "origin: http://a]b", "origin: \xff\xfe"),
    *("authorization: Bearer \xff\xfe", "idempotency-key: \xff\xfe", "expect: 100-continue", "range: bytes=9999-1"),
    *(f"content-type: multipart/form-data{end}" for end in ("", "; boundary=\xff", "; boundary=")),
    *("content-type: \xff/\xfe; charset=\xff", "content-type: application/json; charset=utf-99"),
)


@pytest.mark.parametrize("header", [*HOSTS, *(f"127.0.0.1\r\n{line}" for line in OTHERS)])
def test_an_odd_header_is_no_defect_of_ours(server, remote, header):
    for verb in (f"POST /v1/streams/{remote.id}/observe", f"GET /v1/streams/{remote.id}/state", "POST /v1/streams"):
        answer = raw(server, f"{verb} HTTP/1.1\r\nhost: {header}\r\ncontent-length: 2\r\n\r\n{{}}")
        assert b" 500 " not in answer[:20]
        assert answer.startswith(b"HTTP/1.1 ")


def request(remote, size: int, key: str = "key") -> bytes:
    return (
        f"POST /v1/streams/{remote.id}/observe HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n"
        f"content-type: application/octet-stream\r\nidempotency-key: {key}\r\n\r\n"
    ).encode()


def test_a_slow_client_gets_408_while_others_are_served(server, remote):
    seq = remote.info()["seq"]
    with server.connect() as slow:
        slow.sendall(request(remote, 640) + b"half")
        assert len(remote.score(Z[:5])) == 5
        assert b" 408 " in slow.recv(4096)
    assert remote.info()["seq"] == seq


def test_a_request_of_a_client_that_disconnects_is_learned_once_or_not_at_all(server, remote):
    body = Z[:4].numpy().tobytes()
    for number in range(10):
        with server.connect() as gone:
            gone.sendall(request(remote, len(body), f"gone {number}") + body)
    said = [remote.observe(Z[:4], key=f"gone {number}") for number in range(10)]
    numbers = [row["seq"] for rows in said for row in rows]
    assert len(set(numbers)) == 40
    assert remote.info()["seq"] == max(numbers) + 1


def test_a_body_over_the_limit_is_refused(server, remote):
    with server.connect() as large:
        large.sendall(request(remote, 10**9) + b"x" * 300_000)
        assert b" 413 " in large.recv(4096)


def test_a_reader_that_takes_nothing_of_its_answer_for_a_while_loses_its_connection(server):
    space(negative=8000, dim=512, dtype=torch.float32).save(server.data / "spaces" / "large.safetensors")
    large = server.client.create(space="large", detector="mcm")
    with server.connect() as deaf:
        deaf.sendall(f"GET /v1/streams/{large.id}/space HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        assert deaf.recv(12) == b"HTTP/1.1 200"
        time.sleep(5)  # the system looks at the time when it asks for room: after one second, two at most
        took, size = 0, 8000 * 512 * 4
        with suppress(ConnectionError):
            while took < size and (part := deaf.recv(1 << 20)):
                took += len(part)
    assert took < size


def test_listeners_are_limited_and_one_that_does_not_read_delays_nobody(server, remote):
    line = f"GET /v1/streams/{remote.id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    with server.connect() as first, server.connect() as second:
        for deaf in (first, second):
            deaf.sendall(line)
            assert b"200" in deaf.recv(64)
        with Client(server.url) as client:
            assert client.http.get(f"/v1/streams/{remote.id}/events").status_code == 429
        for part in Z.split(10):
            remote.observe(part)


def test_parallel_deletes_delete_once(server):
    victim = create(server.client)
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda _: httpx.delete(f"{server.url}/v1/streams/{victim.id}"), range(6))
    assert sorted(one.status_code for one in answers) == [200] + [404] * 5


def test_a_snapshot_asked_for_before_a_delete_does_not_make_the_folder_again(tmp_path):
    with open_store(tmp_path) as store:
        entry = store.create(LABELS, CONFIG)
        stream = entry.opened
        store.delete(entry)
        with pytest.raises(ServiceError, match="deleted") as caught:
            stream.snapshot()
        assert caught.value.status == 404
        assert not stream.folder.exists()


@pytest.fixture
def local(tmp_path):
    """A client of an app in this process, its streams, and the id of the only one there is."""
    app = create_app(Service(Settings(tmp_path, encoder=None)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        store = app.state.service.store
        yield client, store, store.create(LABELS, CONFIG).config.id


@pytest.mark.parametrize(("what", "kind"), [("state", Session), ("space", LabelSpace)])
def test_what_is_being_downloaded_outlives_its_stream_and_leaves_nothing(local, tmp_path, monkeypatch, what, kind):
    client, store, id = local
    save = kind.save

    def delete_before(saved, path, **more):
        store.delete(store.entries[id])
        save(saved, path, **more)

    monkeypatch.setattr(kind, "save", delete_before)
    answer = client.get(f"/v1/streams/{id}/{what}")
    monkeypatch.undo()
    assert answer.status_code == 200
    assert not list((tmp_path / "streams").iterdir())
    (tmp_path / "file").write_bytes(answer.content)
    if what == "state":
        assert Session.load(tmp_path / "file", LABELS).snapshot.tally.seen == 0
    else:
        assert LabelSpace.load(tmp_path / "file").fingerprint == LABELS.fingerprint


def test_a_download_is_sent_whole_whatever_range_is_asked_for_and_leaves_nothing(local, tmp_path):
    client, _, id = local
    for range_ in ("bytes=0-1", "bytes=0-1,5-6", "bytes=x", "bytes=99999999999-", "lines=1", "\xff"):
        answer = client.get(f"/v1/streams/{id}/state", headers={"range": range_.encode("latin-1")})
        assert answer.status_code == 200
        assert len(answer.content) == int(answer.headers["content-length"]) > 1000
    assert [path.name for path in (tmp_path / "streams").iterdir()] == [id]


@pytest.mark.parametrize(("value", "message"), [(3e38, "norm of inf"), (float("nan"), "finite")])
def test_a_norm_that_overflows_is_refused_without_a_warning(value, message):
    with pytest.raises(FeatureError, match=message):  # warnings are errors in tests
        sample_batch(LABELS, torch.full((1, LABELS.dim), value))


def test_a_wrong_method_is_told_which_are_allowed_and_a_slash_too_many_is_not_redirected(server):
    answer = httpx.patch(f"{server.url}/v1/streams/0000000000000000")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")
    answer = httpx.get(f"{server.url}/v1/streams/", headers={"host": "localhost:1"}, follow_redirects=False)
    assert (answer.status_code, "location" in answer.headers) == (404, False)


def test_http_1_0_gets_a_whole_answer(server):
    answer = raw(server, "GET /v1/streams HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")
    assert b" 200 " in answer[:20]
    assert b"transfer-encoding" not in answer


def test_the_ipv6_loopback_is_announced_as_a_url(tmp_path):
    with Server(tmp_path / "data", host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert server.client.streams() == []
