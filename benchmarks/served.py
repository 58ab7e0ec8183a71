"""A service in a process of its own, for attack.py, fuzz.py, service.py and soak.py, and a neighbour who observes."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.serve.http.auth import ApiKeys
from unseen_bench.run import Row

RAW = "application/octet-stream"
MAIN = "import time; real = time.time; time.time = lambda: real() + {}; import unseen.__main__ as own; own.main()"


class Service:
    """`unseen serve` in a process of its own, with a key of the owner who attacks and one of a neighbour.

    Its clock is `jump` seconds off.
    """

    def __init__(self, folder: Path, *words: str, keys: bool = True, port: int = 0, jump: float = 0.0) -> None:
        self.data, self.log = folder / "data", folder / "stderr"
        self.keys = {owner: ApiKeys(self.data).add(owner, "admin") for owner in "ab"} if keys else {}
        call = ["serve", "--data", str(self.data), "--port", str(port), "--json", *words]
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN.format(jump), *call], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = urlsplit(json.loads(line)["url"]) if line else urlsplit("")
        while line and self.call("GET", "/readyz", owner="")[0] != 200:
            time.sleep(0.05)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(str(self.url.hostname), self.url.port or 0, timeout=60)

    def socket(self) -> socket.socket:
        return socket.create_connection((str(self.url.hostname), self.url.port or 0), timeout=60)

    def call(self, method: str, path: str, body: bytes | None = None, *, owner: str = "a", **headers: str) -> Any:
        """The status and the body of an answer."""
        with closing(self.connect()) as connection:
            connection.request(method, path, body, self.headers(owner, headers))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def headers(self, owner: str, more: dict[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return ({"authorization": f"Bearer {self.keys[owner]}"} if owner in self.keys else {}) | named

    def create(self, labels: LabelSpace, owner: str = "a", settings: bytes = b'{"detector": "online"}') -> str:
        """The path of a new stream; "" where it is refused."""
        body, media = form(space=labels_bytes(labels), stream=settings)
        status, answer = self.call("POST", "/v1/streams", body, owner=owner, content_type=media)
        return f"/v1/streams/{json.loads(answer)['id']}" if status == 201 else ""

    def memory(self) -> int:
        """The bytes that the service and its processes take, what they share counted once."""
        total = 0
        for process in descendants(self.process.pid):
            with suppress(OSError):
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
                total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        return total << 10

    def stop(self, how: int = signal.SIGKILL) -> None:
        """End it, and fail where a process of its own stays behind."""
        own, until = descendants(self.process.pid), time.monotonic() + 10
        self.process.send_signal(how)
        self.process.wait(20)
        while left := [one for one in own if is_running(one)]:
            assert time.monotonic() < until, f"{len(left)} processes of {len(own)} stay behind"
            time.sleep(0.05)
        assert self.process.stdout is not None
        self.process.stdout.close()


def descendants(process: int) -> list[int]:
    with suppress(OSError):
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [process, *(one for child in children for one in descendants(int(child)))]
    return []


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def cli(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "unseen", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def labels_bytes(labels: LabelSpace) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        labels.save(Path(folder) / "space.safetensors")
        return (Path(folder) / "space.safetensors").read_bytes()


def form(**fields: bytes) -> tuple[bytes, str]:
    """A form and its media type; every field is a file but `stream`."""
    parts = []
    for name, data in fields.items():
        file = b"" if name == "stream" else b'; filename="x"'
        parts.append(b'--b0und\r\ncontent-disposition: form-data; name="' + name.encode() + b'"' + file + b"\r\n\r\n")
        parts.append(data + b"\r\n")
    return b"".join(parts) + b"--b0und--\r\n", "multipart/form-data; boundary=b0und"


def unit_rows(count: int, dim: int) -> bytes:
    """Equal rows of float32, of length one."""
    return normalize(torch.ones(count, dim), dim=-1).numpy().tobytes()


class Neighbour:
    """A caller of its own that observes single samples, and what it and the service's memory went through."""

    def __init__(self, service: Service, labels: LabelSpace) -> None:
        self.service, self.path = service, service.create(labels, "b")
        self.sample = unit_rows(1, labels.dim)
        self.times: list[float] = []
        self.peak, self._ended = 0, threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._call, self._watch)]

    def __enter__(self) -> Neighbour:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        headers = self.service.headers("b", {"content-type": RAW})
        with closing(self.service.connect()) as connection:
            while not self._ended.wait(0.01):
                started = time.perf_counter()
                try:
                    connection.request("POST", f"{self.path}/observe", self.sample, headers)
                    good = connection.getresponse()
                    good.read()
                    assert good.status == 200
                except (OSError, http.client.HTTPException, AssertionError):
                    self.times.append(60.0)
                    connection.close()  # the next request opens another
                self.times.append(time.perf_counter() - started)

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.peak = max(self.peak, self.service.memory())

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.times, n=100, method="inclusive")[98] if len(self.times) > 1 else 60.0


class Attacked:
    """A service with a stream of the attacker, and a neighbour who goes on meanwhile."""

    def __init__(self, folder: Path, labels: LabelSpace, *words: str) -> None:
        self.service = Service(folder, *(words or ("--encoder", "none")))
        self.stream = self.service.create(labels)
        self.neighbour = Neighbour(self.service, labels)

    def __enter__(self) -> Attacked:
        self.neighbour.__enter__()
        time.sleep(0.5)
        self.neighbour.times.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.neighbour.__exit__()
        self.service.stop()

    def head(self, method: str, verb: str) -> str:
        """The head of a request about the attacker's stream, but for its end."""
        key = self.service.keys["a"]
        return f"{method} {self.stream}{verb} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"

    def row(self, result: str, *, passed: bool = True) -> Row:
        """What came of it, and how the neighbour fared."""
        times = self.neighbour.times
        waits = {"p99_ms": 1000 * self.neighbour.p99, "worst_ms": 1000 * max(times)}
        return {**waits, "peak_mb": self.neighbour.peak >> 20, "passed": passed, "result": result}
