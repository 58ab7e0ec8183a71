"""Who may do what: keys, scopes, tenants, browsers of strangers, bombs, and ten thousand malformed requests."""

from __future__ import annotations

import contextlib

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.testclient import TestClient

from helpers.commands import rows
from helpers.commands import run as call
from helpers.service import (
    LABELS,
    ApiKeys,
    Client,
    Limits,
    Server,
    Service,
    Settings,
    create,
    create_app,
    is_loopback,
    refusal,
    run,
)
from helpers.streams import stream
from unseen.errors import SettingError

Z = stream(LABELS, 50)
OPTIONS = {"limits": Limits(rate=100, streams=3)}
KEYS = (("a", "read"), ("a", "observe"), ("a", "admin"), ("b", "admin"), ("*", "admin"))  # owner, scope


@pytest.fixture(scope="module")
def keys(server):
    made = ApiKeys(server.data)
    return {pair: made.add(*pair) for pair in KEYS}


@pytest.fixture(scope="module")
def remote(server, keys):
    with Client(server.url, keys["a", "admin"]) as client:
        yield create(client)


def as_owner(server, text):
    return Client(server.url, text, retries=0)


def test_without_a_key_only_health_and_the_page_answer(server, remote):
    with httpx.Client(base_url=server.url) as stranger:
        for path in ("/healthz", "/readyz", "/", "/docs", "/openapi.json"):
            assert stranger.get(path).status_code == 200
        for path in ("/v1/streams", f"/v1/streams/{remote.id}", f"/v1/streams/{remote.id}/state", "/metrics"):
            assert stranger.get(path).status_code == 401
        for wrong in ("unseen_00000000_x", "Basic abc", "é", "unseen__"):
            headers = {b"authorization": f"Bearer {wrong}".encode()}
            assert stranger.get("/v1/streams", headers=headers).status_code == 401


def test_a_scope_allows_its_own_routes_and_no_more(server, remote, keys):
    with as_owner(server, keys["a", "read"]) as reader, as_owner(server, keys["a", "observe"]) as observer:
        assert len(reader.stream(remote.id).score(Z[:2])) == 2
        assert refusal(lambda: reader.stream(remote.id).observe(Z[:2])) == 403
        assert len(observer.stream(remote.id).observe(Z[:2])) == 2
        assert refusal(observer.stream(remote.id).reset) == 403
        assert refusal(observer.stream(remote.id).delete) == 403
        assert refusal(lambda: create(observer)) == 403


def test_a_stream_does_not_exist_for_another_tenant(server, remote, keys, tmp_path):
    with as_owner(server, keys["b", "admin"]) as other:
        there = other.stream(remote.id)
        assert other.streams() == []
        for work in (there.info, there.delete, there.reset, there.snapshot, lambda: there.score(Z[:1])):
            assert refusal(work) == 404
        assert refusal(lambda: there.state(tmp_path / "stolen")) == 404
        assert refusal(lambda: other.call("GET", "/metrics")) == 403
    with as_owner(server, keys["*", "admin"]) as operator:
        assert [row["id"] for row in operator.streams()] == [remote.id]


def test_a_tenant_over_its_rate_gets_429_and_the_others_do_not(server, keys):
    with as_owner(server, keys["b", "admin"]) as other:
        busy = create(other)
        assert [refusal(lambda: [busy.observe(Z) for _ in range(8)])] == [429]
        with as_owner(server, keys["*", "admin"]) as operator:
            assert operator.streams()
        for _ in range(2):
            create(other)
        assert refusal(lambda: create(other)) == 409


def test_keys_are_stored_as_hashes_in_a_private_file_and_revoked_at_once(server, keys):
    path = server.data / "keys.db"
    assert path.stat().st_mode & 0o077 == 0
    assert not any(text.split("_", 2)[2].encode() in path.read_bytes() for text in keys.values())
    text = ApiKeys(server.data).add("c", "read")
    with as_owner(server, text) as brief:
        assert brief.streams() == []
        ApiKeys(server.data).revoke(text.split("_")[1])
        assert refusal(brief.streams) == 401


@pytest.mark.parametrize("lost", ["revoked", "file deleted", "file deleted before the start"])
def test_once_there_was_a_key_one_is_always_needed(tmp_path, lost):
    keys = ApiKeys(tmp_path)
    text = keys.add("*", "admin")
    service = Service(Settings(tmp_path, encoder=None))
    if lost == "revoked":
        keys.revoke(text.split("_")[1])
    else:
        (tmp_path / "keys.db").unlink()
    if lost == "file deleted before the start":
        service.store.close()
        service = Service(Settings(tmp_path, encoder=None))
    assert service.needs_key
    for secret in (None, text):
        assert refusal(lambda secret=secret: service.keys.check(secret)) == 401
    service.store.close()


def test_behind_a_proxy_a_key_is_needed_on_loopback_too(tmp_path):
    with TestClient(create_app(Service(Settings(tmp_path, encoder=None, behind_proxy=True)))) as client:
        assert client.get("/v1/streams", headers={"host": "127.0.0.1"}).status_code == 401


def test_keys_that_cannot_be_read_let_nobody_in_and_are_read_again(tmp_path, caplog):
    key = ApiKeys(tmp_path).add("a", "read")
    headers, good = {"authorization": f"Bearer {key}"}, (tmp_path / "keys.db").read_bytes()
    with TestClient(create_app(Service(Settings(tmp_path, encoder=None)))) as client:
        assert client.get("/v1/streams", headers=headers).status_code == 200
        (tmp_path / "keys.db").write_bytes(b"junk" * 2000)
        answers = [client.get("/v1/streams", headers=headers) for _ in range(3)]
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "busy")] * 3
        assert client.get("/", headers=headers).status_code == 200
        (tmp_path / "keys.db").write_bytes(good)
        assert client.get("/v1/streams", headers=headers).status_code == 200
    assert caplog.text.count("expected keys in") == 1


FORWARDED = ("x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-host", "x-forwarded-port")


@pytest.mark.parametrize(
    "headers",
    [
        *({name: "for=1.2.3.4"} for name in FORWARDED),
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
    ids=str,
)
def test_without_keys_a_request_through_a_proxy_or_of_another_web_site_is_refused(open_server, headers):
    assert open_server.client.http.post("/v1/streams/0/restore", headers=headers).status_code == 403
    own = {"origin": open_server.url}
    assert open_server.client.http.get("/v1/streams", headers=own).status_code == 200


def test_a_key_with_a_bad_scope_or_owner_is_refused(tmp_path):
    made = ApiKeys(tmp_path)
    with pytest.raises(SettingError, match="scope"):
        made.add("a", "root")
    with pytest.raises(SettingError, match="owner"):
        made.add("../a", "read")
    with pytest.raises(SettingError, match="id of a key"):
        made.revoke("nobody")


def test_binding_another_address_than_loopback_needs_nginx_and_a_key(tmp_path):
    for settings_, message in (
        (Settings(tmp_path, "0.0.0.0"), "--behind-proxy"),
        (Settings(tmp_path, "0.0.0.0", behind_proxy=True), "unseen keys add"),
    ):
        with pytest.raises(SettingError, match=message):
            run(settings_, port=0, demo=False, announce=print)
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org")))


def test_the_command_line_makes_lists_and_revokes_keys(tmp_path):
    def unseen(*words):
        return call("keys", *words, "--data", tmp_path)

    id = unseen("add", "--owner", "team", "--scope", "read").stdout.split("_")[1]
    assert rows(unseen("list", "--json"))[0].items() >= {"id": id, "owner": "team", "scope": "read"}.items()
    assert unseen("list").stdout.split() == [id, "read", "team"]
    unseen("revoke", id)
    assert id not in unseen("list").stdout


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("open")) as running:
        yield running


def called(server, remote, key: str, examples: int) -> list[int]:
    """The statuses of what hypothesis makes of the OpenAPI document, right and wrong, each answer held against it.

    What the document cannot say is whether a body fits the stream, its width, its groups, its snapshots; and a query
    that nobody asked for is not read.
    """
    statuses: list[int] = []
    chosen = settings(max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    chosen = settings(chosen, suppress_health_check=list(HealthCheck))

    def call(case: schemathesis.Case) -> None:
        case.path_parameters |= {"id": remote.id} if "id" in case.path_parameters and "/streams/" in case.path else {}
        sent = {"base_url": server.url, "headers": {"Authorization": f"Bearer {key}"}, "timeout": 20}
        answer = case.call_and_validate(excluded_checks=[positive_data_acceptance, negative_data_rejection], **sent)
        statuses.append(answer.status_code)

    for found in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events") or operation.method == "delete":  # without end, or the end of the stream
            continue
        for mode in schemathesis.GenerationMode:
            with contextlib.suppress(Unsatisfiable):  # a route without parameters has no wrong ones
                chosen(given(operation.as_strategy(generation_mode=mode))(call))()
    return statuses


def test_openapi_is_true_and_no_request_gets_a_500(server, remote, keys):
    remote.observe(Z)
    statuses = called(server, remote, keys["a", "admin"], examples=4)
    assert len(statuses) > 60
    assert {200, 401, 422} <= set(statuses)
    assert max(statuses) < 500
    assert len(remote.score(Z[:1])) == 1
