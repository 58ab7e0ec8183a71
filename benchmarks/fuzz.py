"""Send malformed requests to a service beside a neighbour that observes, and watch for defects and stalls.

    make fuzz                                        # 20,000 requests
    python benchmarks/fuzz.py --requests 2000 --json

Headers, bodies, images, forms, label spaces, states and messages over WebSockets are altered at random.
Wanted: no answer of 500, no wait of the neighbour above 250 ms, memory within the budget.
"""

from __future__ import annotations

import io
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from attacked import RAW, Neighbour, Service, labels_bytes
from unseen_bench.run import command
from unseen_bench.run.synthetic import label_space
from unseen_bench.run.timing import percentiles

STALL = 0.25  # seconds that the neighbour may wait
BUDGET = 1 << 30  # bytes of the service's memory
THREADS = 4
ODD = ["", "\x00", "a" * 5000, "-1", "1e999", "NaN", "null", "[]", "{}", "💥", "../../etc/passwd", "%00", "\r\n\r\n"]
MEDIA = (RAW, "application/vnd.safetensors", "application/vnd.apache.arrow.stream", "image/png")
NEW = ('{"detector": "no"}', "{", '{"settings": {"a": 1e400}}', '{"detector": "mcm"}')


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
    labels = label_space(20, 100, 64)
    with Service(folder, "--encoder", "none") as service:
        stream = service.create(labels)
        fuzzers = [Fuzzer(service, stream, labels_bytes(labels), seed + number) for number in range(THREADS)]
        with Neighbour(service, labels) as neighbour:
            time.sleep(3)
            alone, neighbour.times = neighbour.times, []
            with ThreadPoolExecutor(THREADS) as pool:
                answers = sum(pool.map(lambda one: one.run(requests // THREADS), fuzzers), Counter[int]())
            beside = neighbour.times
    row = {"requests": sum(answers.values()), "defects": answers[500], "peak_memory_mb": neighbour.peak >> 20}
    for name, times in (("alone", alone), ("beside", beside)):
        found = percentiles(times) | {"max_ms": 1e3 * max(times)}
        row |= {f"{name}_{which}": value for which, value in found.items()}
    stalls = sum(seconds > STALL for seconds in beside)
    return {**row, "waits": len(beside), "stalls": stalls, "answers": dict(sorted(answers.items()))}


class Fuzzer:
    """Requests that are wrong in one way or another; the choice follows a seed."""

    def __init__(self, service: Service, stream: str, space: bytes, seed: int) -> None:
        self.choice, self.stream, self.answers = random.Random(seed), stream, Counter[int]()
        self.key = {"authorization": f"Bearer {service.keys['a']}"}
        self.address = (str(service.url.hostname), service.url.port or 0)
        self.http = httpx.Client(base_url=service.url.geturl(), headers=self.key, timeout=30)
        self.space, self.state = space, service.call("GET", f"{stream}/state")[1]
        file = io.BytesIO()
        Image.effect_noise((64, 64), 50).save(file, "png")
        self.image = file.getvalue()

    def run(self, requests: int) -> Counter[int]:
        """How often each status came back; 0 where the client could not send it, or the service hung up."""
        kinds = [self.header, self.json, self.rows, self.picture, self.label_space, self.old_state, self.path, self.raw]
        kinds += [self.form, self.message]
        for _ in range(requests):
            try:
                self.answers[self.choice.choice(kinds)()] += 1
            except (httpx.HTTPError, httpx.InvalidURL, WebSocketException, OSError, ValueError):
                self.answers[0] += 1
        return self.answers

    def post(self, verb: str, **content: Any) -> int:
        return self.http.post(f"{self.stream}/{verb}", **content).status_code

    def header(self) -> int:
        names = ["host", "origin", "content-type", "content-length", "idempotency-key", "authorization", "x-request-id"]
        name = self.choice.choice([*names, "last-event-id", "prefer"])
        headers = {name.encode(): self.odd().encode("utf-8", "ignore")}
        return self.post(self.choice.choice(["observe", "score"]), content=b"{}", headers=headers)

    def json(self) -> int:
        field = self.choice.choice(["features", "images", "keys", "names", "threshold", "settings", "odd"])
        value = self.choice.choice([[[1e308] * 64], ["x"], {"a": [1] * 50}, self.odd(), 10**30, True, None, [[]] * 100])
        path = self.choice.choice([f"{self.stream}/observe", "/v1/streams", f"{self.stream}/restore"])
        text = json.dumps({field: value})
        if self.choice.random() < 0.3:
            text = text[: self.choice.randrange(len(text) + 1)]
        return self.http.post(path, content=text.encode(), headers={"content-type": "application/json"}).status_code

    def rows(self) -> int:
        body = self.choice.randbytes(self.choice.choice([0, 1, 255, 256, 4096, 60_000]))
        return self.post("score", content=body, headers={"content-type": self.choice.choice(MEDIA)})

    def picture(self) -> int:
        files = [("images", (self.odd()[:50], self.altered(self.image)))] * self.choice.randint(1, 3)
        return self.post("score", files=files)

    def label_space(self) -> int:
        files = {"space": self.altered(self.space)}
        return self.http.post("/v1/streams", files=files, data={"stream": self.choice.choice(NEW)}).status_code

    def old_state(self) -> int:
        return self.post("restore", content=self.altered(self.state), headers={"content-type": RAW})

    def path(self) -> int:
        method = self.choice.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
        words = ["v1", "streams", "f" * 16, "jobs", "snapshots", "labels", self.odd()]
        parts = self.choice.choices(words, k=3)
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
        return self.post("score", content=body, headers=headers)

    def message(self) -> int:
        """Send a message over a WebSocket; return 500 where its answer says that it is a defect of ours."""
        url = f"ws://{self.address[0]}:{self.address[1]}{self.stream}/observe"
        with connect(url, additional_headers=self.key) as connection:
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


if __name__ == "__main__":
    main()
