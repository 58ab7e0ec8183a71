"""Odd but possible requests, folders and states: each gets the answer it should."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from starlette.testclient import TestClient
from typer.testing import CliRunner

from helpers.service import (
    LABELS,
    DataFolder,
    Limits,
    Server,
    Service,
    Settings,
    StreamConfig,
    StreamStore,
    create_app,
    sample_batch,
)
from unseen import LabelSpace, Session
from unseen.cli import app
from unseen.errors import FeatureError, ServiceError, SettingError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("edges")
    LABELS.save(path / "space")
    return path


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder / "data") as running:
        yield running


@pytest.fixture(scope="module")
def remote(server, folder):
    return server.client.create(folder / "space", detector="online")


def raw(server, text: str) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(text.replace("\r\n", "\r\nconnection: close\r\n", 1).encode("latin-1"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "header",
    [
        "host: [",
        "host: [::1",
        "host: 127.0.0.1:port",
        "host: a]b",
        "host: ",
        "host: 127.0.0.1\r\norigin: http://[",
        "host: 127.0.0.1\r\norigin: http://a]b",
        "host: 127.0.0.1\r\norigin: \xff\xfe",
        "host: 127.0.0.1\r\nauthorization: Bearer \xff\xfe",
        "host: 127.0.0.1\r\nidempotency-key: \xff\xfe",
        "host: 127.0.0.1\r\ncontent-type: multipart/form-data",
        "host: 127.0.0.1\r\ncontent-type: multipart/form-data; boundary=\xff",
        "host: 127.0.0.1\r\ncontent-type: multipart/form-data; boundary=",
        "host: 127.0.0.1\r\ncontent-type: \xff/\xfe; charset=\xff",
        "host: 127.0.0.1\r\ncontent-type: application/json; charset=utf-99",
        "host: 127.0.0.1\r\nexpect: 100-continue",
        "host: 127.0.0.1\r\nrange: bytes=9999-1",
    ],
)
@pytest.mark.parametrize("verb", ["POST /v1/streams/ID/observe", "GET /v1/streams/ID/state", "POST /v1/streams"])
def test_an_odd_header_is_no_defect_of_ours(server, remote, header, verb):
    answer = raw(server, f"{verb.replace('ID', remote.id)} HTTP/1.1\r\n{header}\r\ncontent-length: 2\r\n\r\n{{}}")
    assert b" 500 " not in answer[:20]
    assert answer.startswith(b"HTTP/1.1 ")


def test_parallel_deletes_delete_once(server, folder):
    victim = server.client.create(folder / "space", detector="online")

    def delete(_) -> int:
        return httpx.delete(f"{server.url}/v1/streams/{victim.id}").status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(pool.map(delete, range(6)))
    assert statuses == [200] + [404] * 5


def test_a_snapshot_asked_for_before_a_delete_does_not_make_the_folder_again(tmp_path):
    store = StreamStore(DataFolder(tmp_path), Settings(tmp_path))
    entry = store.create(LABELS, StreamConfig("", "", "*", "online"))
    stream = entry.opened
    store.delete(entry)
    with pytest.raises(ServiceError, match="deleted") as caught:
        stream.snapshot()
    assert caught.value.status == 404
    assert not stream.folder.exists()
    store.close()


@pytest.mark.parametrize("what", ["state", "space"])
def test_what_is_being_downloaded_outlives_its_stream_and_leaves_nothing(tmp_path, monkeypatch, what):
    app = create_app(Service(Settings(tmp_path / "data", encoder=None)))
    store, kind = app.state.service.store, Session if what == "state" else LabelSpace
    save = kind.save

    def delete_before(saved, path, **more):
        store.delete(next(iter(store.entries.values())))
        save(saved, path, **more)

    with TestClient(app, base_url="http://127.0.0.1") as client:
        id = store.create(LABELS, StreamConfig("", "", "*", "online")).config.id
        monkeypatch.setattr(kind, "save", delete_before)
        answer = client.get(f"/v1/streams/{id}/{what}")
        monkeypatch.undo()
    assert answer.status_code == 200
    assert not list((tmp_path / "data" / "streams").iterdir())
    (tmp_path / "file").write_bytes(answer.content)
    if what == "state":
        assert Session.load(tmp_path / "file", LABELS).snapshot.tally.seen == 0
    else:
        assert LabelSpace.load(tmp_path / "file").fingerprint == LABELS.fingerprint


@pytest.mark.parametrize("range_", ["bytes=0-1", "bytes=0-1,5-6", "bytes=x", "bytes=99999999999-", "lines=1", "\xff"])
def test_a_download_is_sent_whole_whatever_range_is_asked_for_and_leaves_nothing(tmp_path, range_):
    app = create_app(Service(Settings(tmp_path / "data", encoder=None)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        id = app.state.service.store.create(LABELS, StreamConfig("", "", "*", "online")).config.id
        answer = client.get(f"/v1/streams/{id}/state", headers={"range": range_.encode("latin-1")})
        assert answer.status_code == 200
        assert len(answer.content) == int(answer.headers["content-length"]) > 1000
        assert [path.name for path in (tmp_path / "data" / "streams").iterdir()] == [id]


@pytest.mark.parametrize(
    ("value", "message"), [(3e38, "norm of inf"), (float("inf"), "finite"), (float("nan"), "finite")]
)
def test_a_norm_that_overflows_is_refused_without_a_warning(value, message):
    with pytest.raises(FeatureError, match=message):  # warnings are errors in tests
        sample_batch(LABELS, torch.full((1, LABELS.dim), value))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/streams", "GET, POST"),
        ("PATCH", "/v1/streams/0000000000000000", "DELETE, GET"),
        ("GET", "/v1/streams/0000000000000000/observe", "POST"),
    ],
)
def test_a_wrong_method_is_told_which_are_allowed(server, method, path, allowed):
    answer = httpx.request(method, server.url + path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_http_1_0_gets_a_whole_answer(server):
    answer = raw(server, "GET /v1/streams HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")
    assert b" 200 " in answer[:20]
    assert b"transfer-encoding" not in answer


def test_a_slash_too_many_is_not_redirected_to_a_host_of_the_callers_choice(server):
    answer = httpx.get(f"{server.url}/v1/streams/", headers={"host": "localhost:1"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_the_ipv6_loopback_is_announced_as_a_url(tmp_path):
    with Server(tmp_path / "data", host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert server.client.streams() == []


def test_a_data_folder_is_private(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    DataFolder(folder).close()
    assert folder.stat().st_mode & 0o007 == 0
    DataFolder(tmp_path / "new" / "data").close()
    assert (tmp_path / "new" / "data").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("bad", ["a file", "a file inside"])
def test_a_data_folder_that_cannot_be_one_is_refused_in_a_sentence(tmp_path, bad):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" if bad == "a file" else tmp_path / "file" / "data"
    with pytest.raises(SettingError, match="expected a writable folder"):
        DataFolder(path)
    for words in (["serve", "--port", "0"], ["keys", "add"]):
        result = CliRunner().invoke(app, [*words, "--data", str(path)])
        assert isinstance(result.exception, SettingError)


def test_an_error_does_not_say_where_our_files_are(server, folder):
    answer = server.client.http.post("/v1/streams", json={"space": "nothing"})
    assert answer.status_code == 422
    (folder / "data" / "spaces" / "broken.safetensors").write_bytes(b"junk")
    answer = server.client.http.post("/v1/streams", json={"space": "broken"})
    assert answer.status_code == 422
    assert str(folder) not in answer.text


def test_the_streams_of_tenants_do_not_count_as_the_operators(tmp_path):
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path, limits=Limits(streams=2)))
    for owner in ("a", "a", "b", "b", "*", "*"):
        streams.create(LABELS, StreamConfig("", "", owner, "online"))
    with pytest.raises(ServiceError, match="at most 2 streams"):
        streams.create(LABELS, StreamConfig("", "", "*", "online"))
    streams.close()
