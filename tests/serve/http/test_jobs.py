"""Creating a stream is a job: watched, cancelled, asked for twice, and left when the service stops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import weakref

import pytest
from starlette.testclient import TestClient

from helpers.service import LABELS, ApiKeys, Client, Jobs, Server, Service, Settings, create, create_app, serving
from helpers.tiny_text import GatedText
from unseen.errors import ServiceError

WANTED = {"names": ["cat", "dog"], "relatives": 0, "everyday": 1100}


@pytest.fixture
def mining(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    encoder = GatedText()
    with serving(tmp_path / "data", encoder) as url, Client(url) as client:
        yield client, encoder
        encoder.gate.set()


def job_of(client: Client, **options) -> dict:
    answer = client.ask("POST", "/v1/streams?wait=0", json=WANTED, **options)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['job']}"
    return answer.json()


def until(client: Client, job: dict, wanted) -> dict:
    for _ in range(400):
        found = client.call("GET", f"/v1/jobs/{job['job']}", params={"wait": 0.05})
        if wanted(found):
            return found
    raise TimeoutError(found)


def test_a_slow_creation_is_a_job_with_progress_that_a_repeated_request_joins(mining):
    client, encoder = mining
    headers = {"idempotency-key": "k"}
    job = job_of(client, headers=headers)
    assert job_of(client, headers=headers)["job"] == job["job"]
    shown = until(client, job, lambda found: found["done"] > 0)
    assert (shown["status"], shown["stage"]) == ("running", "encoding words")
    assert 0 < shown["done"] < shown["total"]
    encoder.gate.set()
    made = until(client, job, lambda found: found["status"] != "running")
    assert made["status"] == "done"
    assert [one["id"] for one in client.streams()] == [made["stream"]]
    again = client.ask("POST", "/v1/streams", json=WANTED, headers=headers)
    assert (again.status_code, again.json()["id"]) == (201, made["stream"])
    with pytest.raises(ServiceError, match="came with first") as caught:
        client.ask("POST", "/v1/streams", json={"names": ["cat"]}, headers=headers)
    assert caught.value.code == "key_reused"


def test_a_cancelled_job_ends_and_makes_no_stream(mining):
    client, encoder = mining
    job = job_of(client)
    until(client, job, lambda found: found["done"] > 0)
    assert client.call("DELETE", f"/v1/jobs/{job['job']}")["status"] == "cancelled"
    encoder.gate.set()
    calls = encoder.calls
    time.sleep(0.2)
    assert encoder.calls <= calls + 1  # the thread ended when it told its progress
    assert client.streams() == []
    assert client.call("GET", f"/v1/jobs/{job['job']}")["status"] == "cancelled"


def test_the_client_waits_for_a_job(mining):
    client, encoder = mining
    told = list[tuple[int, int]]()

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        encoder.gate.set()  # the job goes on when the client has asked how far it is

    remote = client.create(**WANTED, progress=progress)
    assert remote.info()["labels"]["negatives"] == 1100
    assert told


def test_a_creation_repeated_after_a_restart_makes_no_second_stream(tmp_path):
    with Server(tmp_path / "data") as server:
        first = create(server.client, key="once")
    with Server(tmp_path / "data") as server:
        again = create(server.client, key="once")
        assert (again.id, len(server.client.streams())) == (first.id, 1)
        assert create(server.client, key="twice").id != first.id


def test_an_idempotency_key_of_a_tenant_says_nothing_about_the_operator_s(tmp_path):
    keys = ApiKeys(tmp_path / "data")
    with Server(tmp_path / "data") as server:
        for owner, detector in (("a", "mcm"), ("*", "online")):
            with Client(server.url, keys.add(owner, "admin")) as client:
                assert create(client, key="1", detector=detector).info()["owner"] == owner


def test_a_failed_job_says_why(tmp_path):
    with serving(tmp_path, GatedText()) as url, Client(url) as client:
        answer = client.ask("POST", "/v1/streams?wait=0", json={"space": "none"})
        failed = until(client, answer.json(), lambda found: found["status"] != "running")
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "invalid"
    assert "expected a label space out of" in failed["error"]["message"]


class Upload:
    """What a request has sent."""


def test_jobs_are_limited_and_the_oldest_are_forgotten():
    held: list[weakref.ref[Upload]] = []

    async def wait(job) -> None:
        await asyncio.sleep(30)

    async def fail(job) -> None:
        upload = Upload()
        held.append(weakref.ref(upload))
        raise ServiceError(422, "no")

    async def check() -> None:
        jobs = Jobs(1, kept=1)
        running = jobs.start("a", "", wait, "1")
        assert jobs.start("a", "", wait, "1") is running
        with pytest.raises(ServiceError, match="at most 1 jobs"):
            jobs.start("a", "", wait, "4")
        with pytest.raises(ServiceError, match="the id of no job"):
            jobs.start("b", "", wait, "1")
        running.cancel()
        assert await running.wait(1)
        failed = jobs.start("b", "same", fail, "2")
        await failed.wait(1)
        retried = jobs.start("b", "same", wait, "3")  # a request that failed may be tried again
        assert (running.status, failed.status, retried.status) == ("cancelled", "failed", "running")
        jobs.close()
        await retried.wait(1)
        with pytest.raises(ServiceError, match="your jobs"):
            jobs.find("b", failed.id)
        assert "done" not in {failed.status, retried.status}
        await asyncio.sleep(0)
        gc.collect()
        assert [one() for one in held] == [None]  # the error of a failed job holds on to nothing
        assert str(failed.error) == "no"

    asyncio.run(check())


@pytest.mark.timing
def test_a_stop_ends_in_time_whatever_a_thread_does(tmp_path):
    with Server(tmp_path, stuck=True) as server:
        started = time.perf_counter()
        os.kill(server.process.pid, signal.SIGTERM)
        server.process.join(20)
        assert time.perf_counter() - started < 10
        assert server.process.exitcode == 0


def test_the_stream_of_a_finished_job_is_let_go_when_it_is_deleted(tmp_path):
    service = Service(Settings(tmp_path, encoder=None))
    LABELS.save(tmp_path / "spaces" / "offered.safetensors")
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/streams", json={"space": "offered", "detector": "mcm"}).json()
        stream = weakref.ref(service.store.entries[answer["id"]].opened)
        client.delete(f"/v1/streams/{answer['id']}")
        for _ in range(100):  # the thread that deleted it may be about to let it go
            gc.collect()
            if stream() is None:
                break
            time.sleep(0.05)
        assert stream() is None
        assert client.get(f"/v1/jobs/{answer['id']}").json()["stream"] == answer["id"]
