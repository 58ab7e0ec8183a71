"""Edits of a running stream over HTTP: on disk before they are answered, undone, and one after another."""

from __future__ import annotations

import threading

import pytest
import torch

from helpers.service import Server, create, same
from unseen import LabelSpace, Session, checkpoint, demo
from unseen.discover import group, promote
from unseen.errors import ServiceError

PACK = demo.load().shuffled(0)[:400]
SHIP = "ship"


def created(server):
    """A stream that has observed 300 images and grouped what was unknown."""
    made = create(server.client, PACK.space, detector="default")
    made.observe(PACK.z[:300])
    made.groups()
    return made


@pytest.fixture
def remote(server):
    return created(server)


def everything(remote, path) -> dict:
    """Every tensor of the state, the kept samples with their groups and the record of edits too."""
    remote.state(path)
    found = checkpoint.load(path)
    return {f"{part}.{name}": tensor for part, state in found.states.items() for name, tensor in state.items()}


def vector():
    words = demo.vocabulary()
    return words.vectors[words.words.index(SHIP)].tolist()


def test_promotion_in_a_running_stream_equals_promotion_of_a_session_and_undo_takes_it_back(remote, tmp_path):
    session = Session(PACK.space, keep=2048)
    session.observe(PACK.z[:300])
    found, before = group(session, demo.vocabulary()), everything(remote, tmp_path / "before")
    number = found.groups[0].number
    expected = promote(found.session, number, SHIP, torch.tensor(vector()))
    remote.promote(SHIP, group=number, vector=vector())
    assert remote.undo()["exact"] is True
    after = everything(remote, tmp_path / "after")
    before.pop("reservoir.journal"), after.pop("reservoir.journal")
    assert same(after, before)
    assert remote.groups()["groups"][0]["number"] == number
    record = remote.promote(SHIP, group=number, vector=vector(), after=2)
    assert {name: record[name] for name in expected.record} == expected.record | {"edit": 3}  # after edit and undo
    judged = {row["seq"]: row["name"] for row in remote.review()}
    assert sum(name == SHIP for name in judged.values()) == record["now_named"] > 0
    assert remote.info()["labels"]["names"] == len(PACK.space.names) + 1
    said = remote.observe(PACK.z[300:])
    assert [row["name"] for row in said] == [one.name for one in expected.session.observe(PACK.z[300:])]


def test_edits_survive_a_kill_bit_by_bit_and_the_stream_goes_on(tmp_path):
    server = Server(tmp_path / "data").ready()
    remote = created(server)
    number = remote.groups()["groups"][0]["number"]
    remote.promote(SHIP, group=number, vector=vector())
    remote.observe(PACK.z[300:350])
    remote.rename(SHIP, "vessel")
    remote.groups()
    before, id = everything(remote, tmp_path / "before"), remote.id
    server.kill()
    with Server(tmp_path / "data") as again:
        remote = again.client.stream(id)
        assert same(everything(remote, tmp_path / "after"), before)
        assert [one["verb"] for one in remote.edits()] == ["promote", "rename"]
        remote.undo()
        remote.undo()
        assert remote.info()["labels"]["fingerprint"] == PACK.space.fingerprint
        assert len(remote.observe(PACK.z[350:])) == 50


def test_of_two_who_promote_at_once_one_gets_a_conflict_and_nothing_is_lost(server, remote):
    seen = remote.groups()
    answers: list = []

    def call(name: str) -> None:
        other = server.client.stream(remote.id)
        try:
            answers.append(other.promote(name, group=seen["groups"][0]["number"], vector=vector(), after=seen["edit"]))
        except ServiceError as error:
            answers.append(error)

    threads = [threading.Thread(target=call, args=(name,)) for name in ("ship", "boat")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    refused = [one for one in answers if isinstance(one, ServiceError)]
    (record,) = (one for one in answers if not isinstance(one, ServiceError))
    assert [(one.status, one.code) for one in refused] == [(409, "edit")]
    assert f"expected the stream as it was after edit 0, got edit 1 (promote {record['name']})" in str(refused[0])
    assert remote.edits() == [record]


@pytest.mark.parametrize(
    ("verb", "body", "status", "words"),
    [
        ("promote", {"group": 999, "name": "x", "vector": vector()}, 409, "expected the number of a group, got 999"),
        ("promote", {"seq": 1 << 80, "name": "x", "vector": vector()}, 404, "expected a sample that"),
        ("promote", {"group": 1 << 80, "name": "x", "vector": vector()}, 422, "less than 2147483648"),
        ("promote", {"name": "x"}, 422, "expected either a group or a seq"),
        ("promote", {"group": 1, "name": "qqq"}, 422, "send its `vector`"),
        ("promote", {"group": 1, "name": "cat"}, 409, "known as 'cat'"),
        ("promote", {"group": 1, "name": "a\x00b"}, 409, "with control characters"),
        ("promote", {"group": 1, "name": "x", "vector": [0.1]}, 422, "of shape [512]"),
        ("promote", {"group": 1, "name": "x", "vector": [0.0] * 512}, 422, "finite and not zero"),
        ("promote", {"group": 1, "name": "x", "vector": [1e300] * 512}, 422, "finite and not zero"),
        ("rename", {"name": "nothing", "new": "x"}, 409, "expected a known name, got 'nothing'"),
        ("correct", {"names": {"99999": "cat"}}, 404, "expected a sample that the stream has kept, got 99999"),
        ("correct", {"names": {"first": "cat"}}, 422, "correct.names.first"),
        ("undo", {}, 409, "expected an edit to undo, got none"),
        ("undo", {"after": 3}, 409, "expected the stream as it was after edit 3, got edit 0 (reset)"),
    ],
)
def test_a_bad_edit_is_refused_in_words_and_changes_nothing(server, untouched, verb, body, status, words):
    answer = server.client.http.post(f"/v1/streams/{untouched.id}/edits", json={"verb": verb, **body})
    assert answer.status_code == status, answer.text
    assert words in answer.json()["message"]
    assert untouched.edits() == []


@pytest.fixture(scope="module")
def untouched(server):
    return created(server)


def test_an_answer_repeated_after_an_edit_has_the_names_of_its_time(remote):
    first = remote.observe(PACK.z[300:340], key="same")
    known = next(row["name"] for row in first if row["name"])
    remote.retire(known)
    assert remote.observe(PACK.z[300:340], key="same") == first
    latest = remote.client.call("GET", f"/v1/streams/{remote.id}?recent=true")["recent"]["latest"]
    assert [row["nearest"] for row in latest[-40:]] == [row["nearest"] for row in first]
    assert all(row["name"] != known for row in remote.observe(PACK.z[340:]))


def test_retired_dismissed_corrected_and_undone(server, remote):
    seen = remote.groups()
    number, seq = seen["groups"][0]["number"], seen["groups"][0]["exemplars"][0]
    remote.dismiss(number, after=0)
    assert number not in {one["number"] for one in remote.groups()["groups"]}
    remote.correct({seq: "=sailing()"}, after=1)
    remote.correct({seq: "sailing boat"}, after=2)
    assert next(row for row in remote.review() if row["seq"] == seq)["label"] == "sailing boat"
    assert [remote.undo()["of"] for _ in range(3)] == ["correct", "correct", "dismiss"]
    assert number in {one["number"] for one in remote.groups()["groups"]}
    assert next(row for row in remote.review() if row["seq"] == seq)["user"] is None


def test_a_downloaded_state_goes_on_with_the_downloaded_label_space_and_a_snapshot_brings_the_old_names(
    remote, tmp_path
):
    number = remote.snapshot()
    remote.promote(SHIP, group=1, vector=vector())
    remote.state(tmp_path / "state")
    remote.space(tmp_path / "space")
    session = Session.load(tmp_path / "state", LabelSpace.load(tmp_path / "space"))
    assert session.detector.labels.names == (*PACK.space.names, SHIP)
    said = remote.score(PACK.z[300:310])
    assert [row["name"] for row in said] == [one.name for one in session.score(PACK.z[300:310])]
    remote.restore(number)
    assert remote.info()["labels"]["fingerprint"] == PACK.space.fingerprint
    assert remote.edits() == []


def test_a_suggested_name_and_a_negative_need_no_vector(remote):
    seen = remote.groups()["groups"]
    assert seen[0]["suggestions"][0]["word"] in demo.vocabulary().words
    assert remote.promote(seen[0]["suggestions"][0]["word"], seq=seen[0]["exemplars"][0])["images"] == 1
    negative = PACK.space.negatives[7]
    assert negative in remote.promote(negative, seq=seen[1]["exemplars"][0])["negatives_removed"]
