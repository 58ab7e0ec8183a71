"""The API over a real socket: verdicts, idempotency, concurrency, streams, snapshots, events."""

from __future__ import annotations

import base64
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import unseen
from helpers.service import LABELS, Limits, create, downloaded, flat, learned, same
from helpers.streams import stream
from unseen import Session
from unseen.detectors import Online
from unseen.errors import ServiceError
from unseen.labels import Examples, with_examples
from unseen.storage.files import save_tensors
from unseen.verdicts import FIELDS, VERDICTS

Z = stream(LABELS, 400)


OPTIONS = {"every": 100, "limits": Limits(batch=256)}


def post(server, remote, verb, **content):
    return server.client.http.post(f"/v1/streams/{remote.id}/{verb}", **content)


def test_observe_returns_the_verdicts_of_a_session_with_sequence_numbers(remote, tmp_path):
    session = Session(Online(LABELS))
    for first in (0, 100, 200):
        said = remote.observe(Z[first : first + 100])
        expected = session.observe(Z[first : first + 100])
        assert [row["seq"] for row in said] == list(range(first, first + 100))
        assert [row["name"] for row in said] == [verdict.name for verdict in expected]
        assert [row["margin"] for row in said] == pytest.approx(expected.margin.tolist(), abs=1e-4)
        assert [row["p_known"] for row in said] == pytest.approx(expected.p_known.tolist(), abs=1e-5)
    info = remote.info()
    assert info["counts"]["seen"] == info["seq"] == 300
    assert info["counts"]["taught_known"] > 20
    assert info["threshold"]["value"] == pytest.approx(session.threshold, abs=1e-4)
    assert remote.state(tmp_path / "state.safetensors") == 300
    resumed = Session.load(tmp_path / "state.safetensors", LABELS)
    assert same(flat(resumed), flat(session))


def test_score_is_pure_and_a_verdict_has_the_fields_of_every_other_output(server, remote):
    rows = Z[:2].tolist()
    named = post(server, remote, "observe", json={"features": rows, "keys": ["a.jpg", "b.jpg"]}).json()["verdicts"]
    assert [row["key"] for row in named] == ["a.jpg", "b.jpg"]
    assert set(named[0]) == {*FIELDS, "seq"}
    before = downloaded(remote)
    first, second = remote.score(Z[50:80]), remote.score(Z[50:80])
    assert first == second
    assert set(first[0]) == set(FIELDS)
    assert first[0]["key"] is None
    assert same(before, downloaded(remote))
    recent = server.client.http.get(f"/v1/streams/{remote.id}?recent=true").json()["recent"]
    assert recent["margins"] == pytest.approx([row["margin"] for row in named])
    refused = post(server, remote, "score", json={"features": rows, "keys": ["a.jpg"]})
    assert (refused.status_code, "expected 2 keys" in refused.json()["message"]) == (422, True)


def test_openapi_describes_bodies_verdicts_errors_and_the_bearer_key(server):
    document = server.client.http.get("/openapi.json").json()
    assert sum(map(len, document["paths"].values())) <= 22
    observe, schemas = document["paths"]["/v1/streams/{id}/observe"]["post"], document["components"]["schemas"]
    media = {"application/json", "application/octet-stream", "multipart/form-data", "image/*"}
    assert set(observe["requestBody"]["content"]) == media
    assert {"key", "rate", "features", "disk"} <= set(schemas["Error"]["properties"]["code"]["enum"])
    assert {one["name"] for one in observe["parameters"]} == {"id", "Idempotency-Key"}
    assert observe["security"] == [{"HTTPBearer": []}]
    assert list(schemas["VerdictRecord"]["properties"]) == [*FIELDS, "seq"]
    for record in ("VerdictRecord", "ExplanationInfo"):
        assert schemas[record]["properties"]["verdict"]["enum"] == list(VERDICTS)


def test_what_is_not_known_says_what_it_may_be_as_on_the_command_line(server, remote):
    made = remote.observe(Z[:250], key="all")
    nearest = [LABELS.negatives[row] for row in (Z[:250] @ LABELS.ood_anchors.T).argmax(1).tolist()]
    strange = {row["seq"]: nearest[row["seq"]] for row in made if row["verdict"] != "known"}
    assert 0 < len(strange) < len(made)
    for rows in (made, remote.observe(Z[:250], key="all")):  # again: with the words of the first time
        assert {row["seq"]: row["likely"] for row in rows if row["likely"]} == strange
    (asked,) = remote.score(Z[[next(iter(strange))]])
    assert asked["likely"] == (None if asked["verdict"] == "known" else next(iter(strange.values())))
    recent = server.client.call("GET", f"/v1/streams/{remote.id}", params={"recent": True})["recent"]["latest"]
    assert {row["seq"]: row["likely"] for row in recent if row["likely"]}.items() <= strange.items()


def test_a_client_observes_the_only_stream_there_is(server):
    with unseen.Client(server.url) as client:
        with pytest.raises(ServiceError, match="expected one stream, got 0"):
            client.observe(Z[:2])
        made = create(client)
        assert [row["seq"] for row in client.observe(Z[:2])] == [0, 1]
        assert client.score(Z[2:3]) == made.score(Z[2:3])
        other = create(client)
        with pytest.raises(ServiceError, match="expected one stream, got 2"):
            client.score(Z[:1])
        for remote in (made, other):
            remote.delete()


def test_a_retried_observe_is_not_learned_twice(remote):
    first = remote.observe(Z[:20], key="again")
    middle = remote.observe(Z[20:40])
    assert remote.observe(Z[:20], key="again") == first
    assert middle[0]["seq"] == 20
    with pytest.raises(ServiceError, match="idempotency key came with first") as caught:
        remote.observe(Z[1:21], key="again")
    assert caught.value.status == 422
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: remote.observe(Z[40:45], key="same"), range(16)))
    assert all(rows == said[0] for rows in said)
    assert remote.info()["seq"] == 45
    assert same(downloaded(remote), learned([Z[:20], Z[20:40], Z[40:45]]))


def test_concurrent_callers_get_every_number_once_and_readers_see_whole_states(remote):
    stop = threading.Event()
    margins = []

    def read():
        while not stop.is_set():
            margins.append(remote.score(Z[:1])[0]["margin"])

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda z: (remote.observe(z[None])[0]["seq"], z), Z[:200]))
    stop.set()
    reader.join()
    assert sorted(seq for seq, _ in said) == list(range(200))
    assert len(margins) > 3
    expected = learned([torch.stack([z for _, z in sorted(said, key=lambda pair: pair[0])])])
    for name, tensor in downloaded(remote).items():
        assert torch.allclose(tensor.double(), expected[name].double(), atol=1e-4), name


def test_a_snapshot_is_restored_to_the_bit_and_reset_forgets(remote):
    remote.observe(Z[:40])
    here = downloaded(remote)
    number = remote.snapshot()
    remote.observe(Z[40:90])
    remote.restore(number)
    assert same(downloaded(remote), here)
    assert remote.observe(Z[90:91])[0]["seq"] == 90  # numbers go on: nothing is answered under an old one
    remote.reset()
    assert remote.info()["counts"]["seen"] == 0
    with pytest.raises(ServiceError, match="expected a snapshot of this stream"):
        remote.restore(number + 1)


@pytest.mark.parametrize(
    "header",
    [
        "[" * 9_000,
        '{"names": 5, "negatives": []}',
        json.dumps({"names": ["a", "b"], "negatives": ["c"], "encoder": "\ud800"}),
        json.dumps({"names": ["a", "b"], "negatives": ["c"], "prompt": float("inf")}),
        json.dumps({"names": ["a", "b"], "negatives": ["c"], "other": 1}),
    ],
    ids=lambda header: header[:80],
)
def test_a_label_space_whose_checksum_is_right_and_whose_content_is_not_is_refused(server, tmp_path, header):
    anchors = {"id_anchors": torch.eye(3)[:2].contiguous(), "ood_anchors": torch.eye(3)[2:].contiguous()}
    save_tensors(tmp_path / "space", anchors, kind="label-space", header=header)
    with pytest.raises(ServiceError, match="expected") as caught:
        server.client.create(tmp_path / "space")
    assert caught.value.status == 422


def test_an_uploaded_label_space_brings_its_examples(server):
    taught = with_examples(LABELS, Examples(LABELS.id_anchors.repeat(2, 1), torch.arange(len(LABELS.names)).repeat(2)))
    remote, local = create(server.client, taught, detector="default"), Session(taught)
    z = stream(taught, 5)
    got = [record["margin"] for record in remote.observe(z)]
    assert got == pytest.approx(local.observe(z).margin.tolist(), abs=1e-4)
    assert len(server.client.http.get(f"/v1/streams/{remote.id}/space?format=json").json()["names"]) == 6
    remote.delete()


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ({"json": {"features": [[1.0, 0.0]]}}, 422, r"shape \[n, 16\]"),
        ({"json": {"features": [[0.0] * 16]}}, 422, "zero vector"),
        ({"json": {"features": [[1.0] * 16]}}, 422, "norm of 4"),
        ({"json": {"features": [[1e308] * 16]}}, 422, "finite"),
        ({"json": {"features": [[1.0] * 16, [1.0]]}}, 422, "one width"),
        ({"json": {"features": Z[:1].tolist() * 257}}, 413, "1 to 256 samples, got 257"),
        ({"json": {}}, 422, "either features or images"),
        ({"json": {"features": [["x"]]}}, 422, r"features\[0\]\[0\]"),
        ({"json": {"feature": []}}, 422, "unknown field"),
        ({"content": b"\xff{", "headers": {"content-type": "application/json"}}, 422, "Samples"),
        ({"content": b"123", "headers": {"content-type": "application/octet-stream"}}, 422, "little-endian float32"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "Content-Type"),
        ({"json": {"images": ["%%%"]}}, 422, "base64"),
        ({"json": {"images": [base64.b64encode(b"no image").decode()]}}, 422, "an encoder"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 413, "1 to 256"),
        ({"json": {"features": Z[:1].tolist()}, "headers": {"idempotency-key": "x" * 300}}, 422, "256 characters"),
    ],
)
def test_invalid_samples_are_refused_and_teach_nothing(server, remote, content, status, message):
    answer = post(server, remote, "observe", **content)
    assert answer.status_code == status
    assert re.search(message, answer.json()["message"])
    assert remote.info()["seq"] == 0


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"space": "../../etc/passwd"}, r"out of \['toy'\]"),
        ({"space": None, "names": ["cat", "dog"]}, "unseen serve --encoder"),
        ({"detector": "nobody"}, "detector out of"),
        ({"detector": "gl-mcm"}, "patches"),
        ({"settings": {"tau": -1}}, "tau above 0"),
        ({"settings": {"colour": 1}}, "colour"),
        ({"detector": "framework", "settings": {"targets": 1}}, "settings that fit"),
        ({"threshold": {"kind": "none"}}, "threshold out of"),
        ({"threshold": {"settings": {"window": 10**9}}}, "threshold"),
        ({"threshold": {"settings": {"recall": 2}}}, "recall"),
    ],
)
def test_what_cannot_be_a_stream_is_refused(server, wanted, message):
    LABELS.save(server.data / "spaces" / "toy.safetensors")
    with pytest.raises(ServiceError, match=message) as caught:
        server.client.create(**{"space": "toy", "detector": "online", **wanted})
    assert caught.value.status == 422
    assert server.client.streams() == []


@pytest.mark.parametrize("junk", [b"\x10", b"{}" * 40, b""])
def test_a_file_that_is_no_label_space_is_refused_without_saying_where_our_files_are(server, junk):
    path = server.data / "spaces" / "junk.safetensors"
    path.write_bytes(junk)
    for wanted in ({"file": path}, {"space": "junk"}):
        with pytest.raises(ServiceError, match="expected") as caught:
            server.client.create(**wanted)
        assert caught.value.status == 422
        assert str(server.data) not in str(caught.value)
    path.unlink()
