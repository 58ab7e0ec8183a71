"""Send malformed requests to a service beside a neighbour that observes, and watch for defects and stalls.

    make fuzz                                        # 20,000 requests
    python benchmarks/fuzz.py --requests 2000 --json

Headers, bodies, images, forms, label spaces, states and messages over WebSockets are altered at random.
Wanted: no answer of 500, no wait of the neighbour above 250 ms, memory within the budget.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from service_load import SPAWN, percentiles
from soak import _free_port, _resident, _until_ready, samples
from unseen.serve.client import Client
from unseen.serve.http.auth import ApiKeys
from unseen.serve.run import run
from unseen.serve.settings import Settings
from unseen_bench.run import command
from unseen_bench.run.synthetic import label_space

STALL = 0.25  # seconds that the neighbour may wait
BUDGET = 1 << 30  # bytes of the service's memory
THREADS = 4
ODD = ["", "\x00", "a" * 5000, "-1", "1e999", "NaN", "null", "[]", "{}", "💥", "../../etc/passwd", "%00", "\r\n\r\n"]


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = command.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        row = fuzzed(Path(folder), arguments.requests, arguments.seed)
    print(json.dumps(row) if arguments.json else "\n".join(f"{name:>18}  {value}" for name, value in row.items()))
    if row["defects"] or row["peak_memory_mb"] > BUDGET >> 20:
        sys.exit(1)


def fuzzed(folder: Path, requests: int, seed: int) -> dict[str, Any]:
    """What was answered, and how long the neighbour waited."""
    labels, port, keys = label_space(20, 100, 64), _free_port(), ApiKeys(folder / "data")
    labels.save(folder / "space")
    bad, good = keys.add("bad", "admin"), keys.add("good", "admin")
    process = SPAWN.Process(target=_serve, args=(folder / "data", port), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{port}"
    _until_ready(url)
    try:
        with Client(url, bad) as client:
            stream = client.create(folder / "space", detector="online")
            stream.state(folder / "state")
        neighbour = Neighbour(url, good, folder / "space")
        alone = neighbour.measured(3.0)
        watch = threading.Event()
        peaks: list[int] = []
        watcher = threading.Thread(target=_watch, args=(process.pid, watch, peaks))
        watcher.start()
        fuzzers = [Fuzzer(url, bad, stream.id, folder, seed + number) for number in range(THREADS)]
        threads = [threading.Thread(target=one.run, args=(requests // THREADS,)) for one in fuzzers]
        beside = neighbour.measured_while(threads)
        watch.set()
        watcher.join()
        answers = sum((one.answers for one in fuzzers), Counter[int]())
    finally:
        process.kill()
        process.join()
    defects = {status: count for status, count in answers.items() if status == 500}
    row = {"requests": sum(answers.values()), "defects": sum(defects.values()), "peak_memory_mb": max(peaks) >> 20}
    row |= {f"alone_{name}": value for name, value in percentiles(alone).items()} | {"alone_max_ms": 1e3 * max(alone)}
    row |= {f"beside_{name}": value for name, value in percentiles(beside).items()} | {
        "beside_max_ms": 1e3 * max(beside)
    }
    stalls = sum(seconds > STALL for seconds in beside)
    return {**row, "waits": len(beside), "stalls": stalls, "answers": dict(sorted(answers.items()))}


class Neighbour:
    """A tenant that observes one sample after another and notes how long each took."""

    def __init__(self, url: str, key: str, space: Path) -> None:
        self.client = Client(url, key, retries=0)
        self.stream = self.client.create(space, detector="mcm")
        self.z = samples(64, random.Random(1))[:1]

    def measured(self, seconds: float) -> list[float]:
        ends, times = time.monotonic() + seconds, []
        while time.monotonic() < ends:
            times.append(self._once())
        return times

    def measured_while(self, threads: list[threading.Thread]) -> list[float]:
        for thread in threads:
            thread.start()
        times = []
        while any(thread.is_alive() for thread in threads):
            times.append(self._once())
            time.sleep(0.01)
        return times

    def _once(self) -> float:
        started = time.perf_counter()
        self.stream.observe(self.z)
        return time.perf_counter() - started


class Fuzzer:
    """Requests that are wrong in one way or another; the choice follows a seed."""

    def __init__(self, url: str, key: str, id: str, folder: Path, seed: int) -> None:
        self.choice, self.id, self.answers = random.Random(seed), id, Counter[int]()
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30)
        self.key, self.address = key, ("127.0.0.1", int(url.rpartition(":")[2]))
        self.space, self.state = (folder / "space").read_bytes(), (folder / "state").read_bytes()
        self.image = _png()

    def run(self, requests: int) -> None:
        kinds = [self.header, self.json, self.rows, self.picture, self.label_space, self.old_state, self.path, self.raw]
        kinds += [self.form, self.message]
        for _ in range(requests):
            try:
                self.answers[self.choice.choice(kinds)()] += 1
            except (httpx.HTTPError, httpx.InvalidURL, WebSocketException, OSError, ValueError):
                self.answers[0] += 1  # the client could not send it, or the service hung up

    def header(self) -> int:
        names = ["host", "origin", "content-type", "content-length", "idempotency-key", "authorization", "x-request-id"]
        name = self.choice.choice([*names, "last-event-id", "prefer"])
        headers = {name.encode(): self.odd().encode("utf-8", "ignore")}
        path = f"/v1/streams/{self.id}/{self.choice.choice(['observe', 'score'])}"
        return self.http.post(path, content=b"{}", headers=headers).status_code

    def json(self) -> int:
        field = self.choice.choice(["features", "images", "keys", "names", "threshold", "settings", "odd"])
        value = self.choice.choice([[[1e308] * 64], ["x"], {"a": [1] * 50}, self.odd(), 10**30, True, None, [[]] * 100])
        path = self.choice.choice([f"/v1/streams/{self.id}/observe", "/v1/streams", f"/v1/streams/{self.id}/restore"])
        text = json.dumps({field: value})
        if self.choice.random() < 0.3:
            text = text[: self.choice.randrange(len(text) + 1)]
        return self.http.post(path, content=text.encode(), headers={"content-type": "application/json"}).status_code

    def rows(self) -> int:
        media = self.choice.choice(
            [
                "application/octet-stream",
                "application/vnd.safetensors",
                "application/vnd.apache.arrow.stream",
                "image/png",
            ]
        )
        body = self.choice.randbytes(self.choice.choice([0, 1, 255, 256, 4096, 60_000]))
        return self.http.post(f"/v1/streams/{self.id}/score", content=body, headers={"content-type": media}).status_code

    def picture(self) -> int:
        files = [("images", (self.odd()[:50], self.altered(self.image)))] * self.choice.randint(1, 3)
        return self.http.post(f"/v1/streams/{self.id}/score", files=files).status_code

    def label_space(self) -> int:
        files = {"space": self.altered(self.space)}
        data = {
            "stream": self.choice.choice(
                ['{"detector": "no"}', "{", '{"settings": {"a": 1e400}}', '{"detector": "mcm"}']
            )
        }
        return self.http.post("/v1/streams", files=files, data=data).status_code

    def old_state(self) -> int:
        headers = {"content-type": "application/octet-stream"}
        return self.http.post(
            f"/v1/streams/{self.id}/restore", content=self.altered(self.state), headers=headers
        ).status_code

    def path(self) -> int:
        method = self.choice.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
        parts = [
            self.choice.choice(["v1", "streams", "f" * 16, "jobs", "snapshots", "labels", self.odd()]) for _ in range(3)
        ]
        return self.http.request(method, "/" + "/".join(parts), params={"offset": self.odd(), "wait": "0"}).status_code

    def raw(self) -> int:
        """Send bytes that are hardly HTTP, and return the status of what comes back, 0 for nothing."""
        version = f"HTTP/1.{self.choice.randrange(3)}"
        head = f"{self.odd()} /v1/streams {version}\r\nhost: localhost\r\n{self.odd()}: {self.odd()}\r\n\r\n"
        with socket.create_connection(self.address, timeout=2) as connection:
            connection.sendall(head.encode("utf-8", "ignore") + self.choice.randbytes(50))
            connection.shutdown(socket.SHUT_WR)
            found = re.match(rb"HTTP/1.\d (\d+)", connection.recv(100))
        return int(found[1]) if found else 0

    def form(self) -> int:
        """Send a form of many small files, some of it altered."""
        part = b'--x\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\nq\r\n'
        body = self.altered(part * self.choice.choice([1, 50, 2000, 3000]) + b"--x--\r\n")
        headers = {"content-type": "multipart/form-data; boundary=" + self.choice.choice(["x", "x", self.odd()[:80]])}
        return self.http.post(f"/v1/streams/{self.id}/score", content=body, headers=headers).status_code

    def message(self) -> int:
        """Send a message over a WebSocket; return 500 where its answer says that it is a defect of ours."""
        url = f"ws://{self.address[0]}:{self.address[1]}/v1/streams/{self.id}/observe"
        with connect(url, additional_headers={"authorization": f"Bearer {self.key}"}) as connection:
            odd: list[str | bytes] = [self.odd(), json.dumps({"features": self.odd()}), self.altered(self.image)]
            connection.send(self.choice.choice(odd))
            answer = json.loads(connection.recv(timeout=20))
        return 500 if answer.get("code") == "defect" else 422

    def odd(self) -> str:
        return self.choice.choice(ODD)

    def altered(self, data: bytes) -> bytes:
        """Data with some bytes changed, left out or added."""
        made = bytearray(data)
        for _ in range(self.choice.randint(1, 4)):
            place = self.choice.randrange(len(made)) if made else 0
            if self.choice.random() < 0.5:
                made[place : place + 4] = self.choice.randbytes(4)
            else:
                del made[place : place + self.choice.randrange(1, 200)]
        return bytes(made)


def _png() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "png")
    return file.getvalue()


def _serve(data: Path, port: int) -> None:
    os.environ["UNSEEN_CACHE"] = str(data / "cache")
    run(Settings(data, encoder=None, logs=data / "logs"), port=port, demo=False, announce=len)


def _watch(pid: int | None, ended: threading.Event, peaks: list[int]) -> None:
    while not ended.is_set():
        peaks.append(_resident(pid))
        ended.wait(0.1)


if __name__ == "__main__":
    main()
