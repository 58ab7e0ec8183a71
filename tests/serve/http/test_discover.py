"""Groups and explanations over HTTP, on a real service process."""

from __future__ import annotations

import pytest

from helpers.service import create
from unseen import Session, demo
from unseen.discover import explain, group

PACK = demo.load().shuffled(0)[:400]


@pytest.fixture(scope="module")
def remote(server):
    made = create(server.client, PACK.space, detector="default")
    made.observe(PACK.z[:10])
    made.reset()  # sequence numbers go on
    made.observe(PACK.z[:300])
    return made


@pytest.fixture(scope="module")
def session():
    session = Session(PACK.space)
    session.observe(PACK.z[:300])
    return session


def get(server, remote, path: str):
    return server.client.http.get(f"/v1/streams/{remote.id}/{path}")


def test_groups_are_those_of_a_session_by_sequence_number_and_keep_their_numbers(server, remote, session):
    found = get(server, remote, "groups").json()["groups"]
    expected = group(session, demo.vocabulary()).groups
    places = {one.number: sorted(int(key[1:]) + 9 for key in one.keys) for one in expected}
    assert {one["number"]: sorted(one["keys"]) for one in found} == places
    assert all(one["first"] == min(one["keys"]) and one["last"] == max(one["keys"]) for one in found)
    before = {one["number"]: set(one["keys"]) for one in found[:2]}
    remote.observe(PACK.z[300:])
    later = {one["number"]: set(one["keys"]) for one in get(server, remote, "groups").json()["groups"]}
    assert all(len(keys & later[number]) > 0.5 * len(keys) for number, keys in before.items())


def test_an_explanation_names_a_kept_sample(server, remote, session):
    kept = session.reservoir.images
    row = int((~kept.known).nonzero()[0])
    seq = int(kept.place[row]) + 10
    found = get(server, remote, f"explain/{seq}").json()
    assert found["seq"] == seq
    assert [one["word"] for one in found["names"]] == [one.word for one in explain(session, kept.features[row]).names]
    assert found["why"].startswith(found["verdict"])
    assert all(one["seq"] >= 10 for one in found["similar"])
    refused = get(server, remote, "explain/9999")
    assert (refused.status_code, "that the stream has kept" in refused.json()["message"]) == (404, True)


def test_a_stream_without_unknown_samples_says_so(server):
    refused = get(server, create(server.client), "groups")
    assert refused.status_code in (409, 422)
    assert "expected unknown images, got none among 0" in refused.json()["message"]
