"""A disk that is full: said with 507, and everything goes on by itself when there is room."""

from __future__ import annotations

import resource
import time

import pytest

from helpers.service import LABELS, Server, create, downloaded, learned, refusal, same
from helpers.streams import stream
from unseen.errors import ServiceError

Z = stream(LABELS, 1000)


def give_room(server: Server, size: int = 1 << 30) -> None:
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_while_the_disk_is_full_every_route_answers_507_and_all_goes_on_when_there_is_room(tmp_path):
    data = tmp_path / "data"
    with Server(data, room=400_000) as server:
        remote, sent = create(server.client), []
        number = remote.snapshot()
        server.client.retries = 0

        def observe():
            part = Z[20 * len(sent) :][:20]
            assert remote.observe(part, key=f"part {len(sent)}")[0]["seq"] == 20 * len(sent)
            sent.append(part)

        def fill():
            while len(sent) < 50:
                observe()

        with pytest.raises(ServiceError, match="sound disk") as caught:
            fill()
        assert caught.value.status == 507
        assert remote.info()["seq"] == 20 * len(sent) > 0
        give_room(server, 1024)
        verbs = {
            "observe": observe,
            "reset": remote.reset,
            "snapshot": remote.snapshot,
            "state": lambda: remote.state(tmp_path / "other"),
            "restore": lambda: remote.restore(number),
            "create": lambda: create(server.client),
        }
        for _ in range(2):
            assert {name: refusal(verb) for name, verb in verbs.items()} == dict.fromkeys(verbs, 507)
        assert remote.score(Z[:1])
        give_room(server)
        observe()
        expected = learned(sent)
        assert same(downloaded(remote), expected)
        assert remote.snapshot()
    assert not list((data / "streams").glob(".*"))
    with Server(data) as server:
        assert same(downloaded(server.client.stream(remote.id)), expected)


def test_a_stream_waits_for_room_at_start_and_opens_by_itself(tmp_path):
    first = Server(tmp_path / "data").ready()
    remote = create(first.client)
    remote.observe(Z[:20])
    first.kill()
    with Server(tmp_path / "data", room=1024) as server:
        server.client.retries = 0
        stream = server.client.stream(remote.id)
        assert server.client.streams()[0]["status"] == "waiting"
        assert refusal(lambda: stream.observe(Z[20:21])) == 507
        give_room(server)
        for _ in range(100):
            if server.client.streams()[0]["status"] == "ready":
                break
            time.sleep(0.05)
        assert stream.observe(Z[20:21])[0]["seq"] == 20
