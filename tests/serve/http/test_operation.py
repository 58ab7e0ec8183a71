"""What an operator has: logs, request ids, codes, key expiry and rotation, process metrics, the alarm."""

from __future__ import annotations

import json
import logging
import time

import httpx
import pytest
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser
from starlette.testclient import TestClient

from helpers.service import (
    LABELS,
    ApiKeys,
    Client,
    Jobs,
    Limits,
    RequestLog,
    Server,
    Service,
    Settings,
    create,
    create_app,
    hush_libraries,
)
from helpers.streams import stream
from unseen.errors import ServiceError

Z = stream(LABELS, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("operation")


@pytest.fixture(scope="module")
def keys(folder):
    return ApiKeys(folder / "data")


@pytest.fixture(scope="module")
def client(folder, keys):
    admin = keys.add("*", "admin")
    with (
        Server(folder / "data", logs=folder / "logs", limits=Limits(reads=40)) as server,
        Client(server.url, admin) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def remote(client):
    return create(client, name="first")


def lines(path, status: int = 200) -> list[dict]:
    """The lines of a log, which are written after the answers, once one has this status."""
    found: list[dict] = []
    for _ in range(250):
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if any(row["status"] == status for row in found):
            break
        time.sleep(0.02)
    return found


def test_every_request_has_an_id_and_a_line_in_the_log_and_changes_are_audited(client, remote, folder):
    remote.observe(Z)
    mine = client.http.get("/v1/streams", headers={"x-request-id": "mine-7"})
    odd = client.http.get("/v1/streams", headers={"x-request-id": "\x41" * 65})
    stranger = httpx.get(client.http.base_url.join("/v1/streams"), headers={"authorization": "Bearer unseen_secret_x"})
    assert mine.headers["x-request-id"] == "mine-7"
    assert len(odd.headers["x-request-id"]) == 16
    assert (stranger.status_code, stranger.json()["code"]) == (401, "key")
    access, audit = lines(folder / "logs" / "access.jsonl", 401), lines(folder / "logs" / "audit.jsonl", 201)
    assert any(row["request"] == "mine-7" and row["status"] == 200 and row["owner"] == "*" for row in access)
    assert {row["path"] for row in audit} >= {"/v1/streams"}
    assert not any(row["path"].endswith("/observe") for row in audit)
    assert any(row["status"] == 401 and row["code"] == "key" for row in access)
    assert not any(row["status"] == 401 for row in audit)  # strangers would fill it
    everything = json.dumps(access + audit)
    assert client.http.headers["authorization"].split("_", 2)[2] not in everything  # a secret may have underscores
    assert "secret" not in everything


@pytest.mark.parametrize("file", ["access.jsonl", "audit.jsonl"])
def test_a_log_that_cannot_be_written_is_counted_and_files_are_rotated(tmp_path, file):
    log = RequestLog(tmp_path / "logs", most=10)
    for number in range(6):
        log.write(file, number=number, text="\x9b\u202e")
    log.close()
    files = sorted((tmp_path / "logs").iterdir())
    assert [path.name for path in files] == [file, *(f"{file}.{number}" for number in (1, 2, 3))]
    assert all(path.read_bytes().isascii() and b"u009b" in path.read_bytes() for path in files)
    broken = RequestLog(tmp_path / "broken")
    (tmp_path / "broken").rmdir()
    (tmp_path / "broken").write_text("")
    broken.write(file, number=1)
    broken.close()
    assert broken.dropped == 1


def test_keys_expire_and_are_rotated(client, keys):
    def code_of(text: str) -> str | None:
        answer = httpx.get(client.http.base_url.join("/v1/streams"), headers={"authorization": f"Bearer {text}"})
        return answer.json().get("code")

    soon, later = keys.add("a", "read", time.time() - 1), keys.add("a", "read", time.time() + 60)
    assert [code_of(text) for text in (soon, later)] == ["key_expired", None]
    successor = keys.rotate(later.split("_")[1], 0)
    time.sleep(0.01)
    assert [code_of(text) for text in (later, successor)] == ["key_expired", None]


def test_a_list_has_the_streams_and_the_label_spaces_on_offer(client, remote, folder):
    LABELS.save(folder / "data" / "spaces" / "animals.safetensors")
    found = client.call("GET", "/v1/streams")
    assert remote.id in {one["id"] for one in found["streams"]}
    assert found["spaces"] == ["animals"]
    with pytest.raises(ServiceError, match="parameters") as caught:
        client.call("GET", "/v1/jobs/x", params={"wait": -1})
    assert caught.value.code == "parameters"


def test_requests_samples_refusals_and_the_process_are_measured(client):
    remote = create(client)
    remote.observe(Z)
    assert remote.info()["memory_bytes"] > 1000
    answer = client.http.post(
        f"/v1/streams/{remote.id}/observe", content=b"abc", headers={"content-type": "application/octet-stream"}
    )
    assert answer.status_code == 422
    text = client.ask("GET", "/metrics").text
    for name in (
        f'unseen_samples_total{{stream="{remote.id}"',
        'unseen_requests_total{route="/v1/streams/{id}/observe",status="422"}',
        'unseen_refused_total{code="features"}',
        "process_resident_memory_bytes",
        "process_open_fds",
        "unseen_commit_seconds_count",
        "unseen_waiting_seconds",
    ):
        assert name in text
    remote.delete()
    assert remote.id not in client.ask("GET", "/metrics").text


def test_reads_of_one_owner_are_limited_and_others_go_on(tmp_path):
    keys = ApiKeys(tmp_path / "data")
    greedy, other = (keys.add(owner, "read") for owner in ("a", "b"))
    with Server(tmp_path / "data", limits=Limits(reads=2)) as server:
        with Client(server.url, greedy, retries=0) as client:
            codes = {client.http.get("/v1/streams").json().get("code") for _ in range(12)}
        assert "reads" in codes
        with Client(server.url, other, retries=0) as client:
            assert client.streams() == []


def test_an_alarm_is_shown_and_started_again(client, remote):
    shown = client.call("POST", f"/v1/streams/{remote.id}/alarm", json={"allowed": 0.1})
    assert (shown["allowed"], shown["raised_at"]) == (0.1, None)
    assert remote.info()["alarm"]["allowed"] == 0.1
    assert client.call("POST", f"/v1/streams/{remote.id}/alarm", json={})["allowed"] is None


def test_a_defect_of_ours_is_answered_counted_and_logged_like_anything_else(tmp_path, monkeypatch):
    def broken(*_):
        raise KeyError("what nobody should see")

    monkeypatch.setattr(Jobs, "find", broken)
    app = create_app(Service(Settings(tmp_path / "data", encoder=None, logs=tmp_path / "logs")))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        answer = client.get("/v1/jobs/1")
        assert (answer.status_code, answer.json()["code"]) == (500, "defect")
        assert "nobody" not in answer.text
        assert {"x-request-id", "content-security-policy"} <= set(answer.headers)
        assert 'unseen_refused_total{code="defect"} 1.0' in client.get("/metrics").text
    logged = lines(tmp_path / "logs" / "access.jsonl", 500)
    assert [line["code"] for line in logged if line["status"] == 500] == ["defect"]


def test_traces_come_from_the_standard_package(tmp_path):
    traced = pytest.importorskip(
        "opentelemetry.instrumentation.fastapi", reason="where traces are wanted"
    ).FastAPIInstrumentor
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    app = create_app(Service(Settings(tmp_path, encoder=None)))
    traced.instrument_app(app, tracer_provider=provider)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.get("/v1/streams/0123456789abcdef")
    assert "GET /v1/streams/{id}" in [span.name for span in memory.get_finished_spans()]


def test_bad_requests_write_no_lines_to_the_standard_error(caplog):
    hush_libraries()
    with pytest.raises(FormParserError):
        MultipartParser("x").write(b"no boundary")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert not caplog.records
    logging.getLogger("uvicorn.error").error("Application startup failed. Exiting.")
    assert len(caplog.records) == 1
