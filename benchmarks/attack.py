"""Fourteen attacks on a service that each brought one down, or its data, and what they do today.

    python benchmarks/attack.py            # a table, in less than five minutes
    python benchmarks/attack.py --json --attacks pipelining names

The service is `unseen serve` in a process of its own on loopback. Beside an attack a neighbour with a key of its own
observes single samples: `p99 ms` is of the answers it waited for, `MB` the peak memory of the service with all its
processes. An attack passes if its own condition holds, p99 is under 500 ms and memory under 1,500 MB.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import signal
import socket
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space

MOST_SECONDS, MOST_BYTES = 0.5, 1_500 << 20
RAW = "application/octet-stream"
DIM = 64


class Service:
    """`unseen serve` in a process of its own, with a key of the owner who attacks and one of a neighbour."""

    def __init__(self, folder: Path, *words: str, keys: bool = True) -> None:
        self.data, self.log = folder / "data", folder / "stderr"
        self.keys = {owner: cli("keys", "add", "--owner", owner, "--scope", "admin", "--data", str(self.data))
                     for owner in ("a", "b")} if keys else {}  # fmt: skip
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "unseen", "serve", "--data", str(self.data), "--port", "0", "--json", *words],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = urlsplit(json.loads(line)["url"]) if line else urlsplit("")
        while line and self.call("GET", "/readyz", owner="")[0] != 200:
            time.sleep(0.05)

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
        return named | ({"authorization": f"Bearer {self.keys[owner]}"} if owner in self.keys else {})

    def create(self, labels: LabelSpace, owner: str = "a") -> str:
        """The path of a new stream; "" where it is refused."""
        body, media = form(space=labels_bytes(labels), stream=b'{"detector": "online"}')
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
        self.process.send_signal(how)
        self.process.wait(20)
        if self.process.stdout:
            self.process.stdout.close()


def descendants(process: int) -> list[int]:
    with suppress(OSError):
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [process, *(one for child in children for one in descendants(int(child)))]
    return []


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


class Neighbour:
    """A caller of its own that observes single samples, and what it and the service's memory went through."""

    def __init__(self, service: Service, labels: LabelSpace) -> None:
        self.service, self.path = service, service.create(labels, "b")
        self.sample = normalize(torch.ones(1, labels.dim), dim=-1).numpy().tobytes()
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
        connection = self.service.connect()
        while not self._ended.wait(0.01):
            started = time.perf_counter()
            try:
                connection.request("POST", f"{self.path}/observe", self.sample, headers)
                good = connection.getresponse()
                good.read()
                assert good.status == 200
            except (OSError, http.client.HTTPException, AssertionError):
                self.times.append(60.0)
                connection = self.service.connect()
            self.times.append(time.perf_counter() - started)

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.peak = max(self.peak, self.service.memory())

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.times, n=100, method="inclusive")[98] if len(self.times) > 1 else 60.0


@contextmanager
def attacked(service: Service, row: Row, labels: LabelSpace) -> Iterator[str]:
    """Yield a stream of the attacker while a neighbour goes on, and note how it fared."""
    stream = service.create(labels)
    with Neighbour(service, labels) as neighbour:
        time.sleep(0.5)
        neighbour.times.clear()
        yield stream
    row |= {"p99_ms": 1000 * neighbour.p99, "worst_ms": 1000 * max(neighbour.times), "peak_mb": neighbour.peak >> 20}
    row["passed"] = row["passed"] and neighbour.p99 < MOST_SECONDS and neighbour.peak < MOST_BYTES


def small() -> LabelSpace:
    return label_space(20, 200, DIM)


def many(work: Callable[[], object], callers: int, seconds: float) -> list[Any]:
    """What `callers` got that did some work again and again."""
    until, found = time.monotonic() + seconds, []

    def repeat() -> None:
        while time.monotonic() < until:
            with suppress(OSError, http.client.HTTPException):
                found.append(work())

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(lambda _: repeat(), range(callers)))
    return found


def pipelining(folder: Path, seconds: float) -> Row:
    """Connections that send 40,000 requests without a key in one write, and read no answer."""
    service, row = Service(folder, "--encoder", "none"), Row(passed=True)
    requests = b"GET /v1/streams HTTP/1.1\r\nhost: a\r\n\r\n" * 40_000
    with attacked(service, row, small()):
        sockets = [service.socket() for _ in range(100)]
        for one in sockets:
            one.setblocking(False)
        until, sent = time.monotonic() + seconds, dict.fromkeys(sockets, 0)
        while time.monotonic() < until:
            for one in sockets:
                with suppress(OSError):
                    sent[one] += one.send(requests[sent[one] % 37 :])
            time.sleep(0.02)
    for one in sockets:
        one.close()
    service.stop()
    return row | {"result": f"{sum(sent.values()) / 37:,.0f} requests were taken"}


def pings(folder: Path, seconds: float) -> Row:
    """5 MB of WebSocket pings over each of eight sockets."""
    service, row = Service(folder, "--encoder", "none"), Row(passed=True)
    with attacked(service, row, small()) as stream:
        upgrade = f"GET {stream}/observe HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {service.keys['a']}\r\n"
        upgrade += "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        sockets = [service.socket() for _ in range(8)]
        for one in sockets:
            one.sendall((upgrade + "sec-websocket-key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n").encode())
            answer = one.recv(4096)
            if b" 101 " in answer:
                one.settimeout(seconds)
                with suppress(OSError):
                    one.sendall(b"\x89\x80\0\0\0\0" * (5_000_000 // 6))
        time.sleep(seconds if b" 101 " in answer else 1)
    service.stop()
    return row | {"result": f"upgrade answered {answer.split()[1].decode()}"}


def names(folder: Path, seconds: float) -> Row:
    """A label space whose names have a million characters each."""
    service, row = Service(folder, "--encoder", "none"), Row(passed=True)
    z = label_space(20, 20, DIM)
    long = LabelSpace(tuple(f"{n}" * 1_000_000 for n in range(8, 28)), z.negatives, z.id_anchors, z.ood_anchors)
    with attacked(service, row, small()):
        stream, size = service.create(long), 0
        if stream:
            body = normalize(torch.ones(512, DIM), dim=-1).numpy().tobytes()
            size = len(service.call("POST", f"{stream}/score", body, content_type=RAW)[1])
    service.stop()
    row["passed"] = row["passed"] and not stream
    return row | {"result": f"an answer of {size:,} bytes" if stream else "refused"}


def webp(width: int, height: int) -> bytes:
    """The header of a lossless WebP, and nothing that could be decoded."""
    bits = struct.pack("<BI", 0x2F, (width - 1) | (height - 1) << 14) + b"\0" * 5
    chunk = b"WEBP" + b"VP8L" + struct.pack("<I", len(bits)) + bits
    return b"RIFF" + struct.pack("<I", len(chunk)) + chunk


def bombs(folder: Path, seconds: float) -> Row:
    """24 callers with 40 bytes of WebP that claim 7,070 x 7,070 pixels."""
    return images(folder, [webp(7070, 7070)], seconds, callers=24)


def formats(folder: Path, seconds: float) -> Row:
    """JPEG 2000 and WebP whose decoding takes seconds."""
    from PIL import Image

    files = []
    for kind, side, options in (("JPEG2000", 3000, {}), ("WEBP", 6000, {"lossless": True, "quality": 0, "method": 0})):
        picture, file = Image.effect_noise((side, side), 100).convert("RGB"), io.BytesIO()
        picture.save(file, kind, **options)
        files.append(file.getvalue())
    return images(folder, files, seconds, callers=4)


def images(folder: Path, files: list[bytes], seconds: float, *, callers: int) -> Row:
    """Callers that upload images to a service with a small encoder; health is looked at meanwhile."""
    from helpers.tiny_models import save_clip

    model = save_clip(folder / "clip")
    service, row = Service(folder, "--encoder", str(model)), Row(passed=True)
    labels, health, statuses = label_space(20, 20, 8), list[float](), list[int]()
    with attacked(service, row, labels) as stream:
        turns = iter(range(10**9))

        def upload() -> None:
            file = files[next(turns) % len(files)]
            statuses.append(service.call("POST", f"{stream}/observe", file, content_type="image/webp")[0])

        def look() -> None:
            started = time.perf_counter()
            service.call("GET", "/healthz", owner="")
            health.append(time.perf_counter() - started)
            time.sleep(0.02)

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(many, upload, callers, seconds)
            many(look, 1, seconds)
            busy.result()
    service.stop()
    row["passed"] = row["passed"] and max(health) < MOST_SECONDS
    return row | {"result": f"{len(statuses)} answered, health within {1000 * max(health):.0f} ms"}


def keys(folder: Path, seconds: float) -> Row:
    """Keys that are revoked while others are added: do all revoked ones end?"""
    words, count = ("--data", str(folder / "data")), 5
    made = [cli("keys", "add", "--owner", "a", *words) for _ in range(count)]
    with ThreadPoolExecutor(2 * count) as pool:
        ended = [pool.submit(cli, "keys", "revoke", key.split("_")[1], *words) for key in made]
        added = [pool.submit(cli, "keys", "add", "--owner", "b", *words) for _ in range(count)]
        for one in (*ended, *added):
            one.result()
    owners = [json.loads(line)["owner"] for line in cli("keys", "list", "--json", *words).splitlines()]
    return Row(
        passed=owners == ["b"] * count, result=f"{owners.count('a')} revoked keys live, {count} added: {owners}"[:60]
    )


def downloads(folder: Path, seconds: float) -> Row:
    """Downloads of a large state that nobody reads: does the owner get other answers?"""
    service, row = Service(folder, "--encoder", "none"), Row(passed=True)
    labels = label_space(1000, 6000, 512)
    with attacked(service, row, labels) as stream:
        held = [service.socket() for _ in range(40)]
        for one in held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(
                f"GET {stream}/state HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {service.keys['a']}\r\n\r\n".encode()
            )
        waited = slowest(service, [("GET", stream, None), ("GET", "/v1/streams", None)], seconds)
    service.stop()
    row["passed"] = row["passed"] and waited < 5
    return row | {"result": f"the owner's own calls within {waited:.1f} s"}


def bodies(folder: Path, seconds: float) -> Row:
    """260 requests of one owner whose bodies do not come: does the owner get other answers?"""
    service, row = Service(folder, "--encoder", "none"), Row(passed=True)
    with attacked(service, row, small()) as stream:
        head = f"POST {stream}/observe HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {service.keys['a']}\r\n"
        held = [service.socket() for _ in range(260)]
        for one in held:
            one.sendall((head + f"content-type: {RAW}\r\ncontent-length: {4 * DIM}\r\n\r\nx").encode())
        time.sleep(0.5)
        sample = normalize(torch.ones(1, DIM), dim=-1).numpy().tobytes()
        waited = slowest(service, [("POST", f"{stream}/observe", sample), ("GET", stream, None)], seconds)
    service.stop()
    row["passed"] = row["passed"] and waited < 5
    return row | {"result": f"the owner's own calls within {waited:.1f} s"}


def slowest(service: Service, calls: list[tuple[str, str, bytes | None]], seconds: float) -> float:
    """The longest time that a call took; one that is refused or takes longer than `seconds` counts as a minute."""
    times = []
    for method, path, body in calls:
        started = time.perf_counter()
        try:
            with closing(service.connect()) as connection:
                connection.timeout = 2 * seconds
                connection.request(method, path, body, service.headers("a", {"content-type": RAW}))
                refused = connection.getresponse().status >= 400
        except OSError:
            refused = True
        times.append(60.0 if refused else time.perf_counter() - started)
    return max(times)


def folders(folder: Path, seconds: float) -> Row:
    """`--data` on a folder with other content that all may read."""
    data = folder / "data"
    data.mkdir()
    (data / "mine").write_text("")
    data.chmod(0o775)
    service = Service(folder, "--encoder", "none", keys=False)
    mode, started = data.stat().st_mode & 0o777, bool(service.url.hostname)
    service.stop()
    return Row(passed=mode == 0o775 and not started, result=f"started: {started}, then {mode:o}")


def headers(folder: Path, seconds: float) -> Row:
    """A header of 64 MB, in pieces."""
    service, row = Service(folder, "--encoder", "none"), Row(passed=True)
    with attacked(service, row, small()), service.socket() as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: ")
        taken = 0
        with suppress(OSError):
            for _ in range(1024):
                taken += one.send(b"x" * 65536)
        time.sleep(seconds / 2)
    service.stop()
    row["passed"] = row["passed"] and taken < 16 << 20  # what the system itself holds on the way
    return row | {"result": f"{taken >> 10:,} kB were taken"}


def index(folder: Path, seconds: float) -> Row:
    """An index of idempotency keys that was altered: is a retry learned twice without notice?"""
    service = Service(folder, "--encoder", "none")
    stream = service.create(small())
    body = normalize(torch.ones(1, DIM), dim=-1).numpy().tobytes()
    for n in range(50):
        service.call("POST", f"{stream}/observe", body, content_type=RAW, idempotency_key=f"key {n}")
    service.stop(signal.SIGTERM)
    journal = service.data / "streams" / stream.rsplit("/", 1)[1] / "journal.db"
    with closing(sqlite3.connect(journal)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_receipts_1'").fetchone()
    data = bytearray(journal.read_bytes())
    start = (root - 1) * page
    key = hashlib.blake2b(b"key 7", digest_size=16).digest()
    at = data.index(key, start, start + page)
    data[at] ^= 1
    journal.write_bytes(data)
    again = Service(folder, "--encoder", "none", keys=False)
    again.keys = service.keys
    status, answer = again.call("POST", f"{stream}/observe", body, content_type=RAW, idempotency_key="key 7")
    again.stop()
    noticed = status == 503 or bool(json.loads(answer).get("repeated"))
    return Row(passed=noticed, result=f"status {status}, " + ("noticed" if noticed else "learned twice"))


def sites(folder: Path, seconds: float) -> Row:
    """GET by a page of another site, where no key is needed."""
    service = Service(folder, "--encoder", "none", keys=False)
    status, _ = service.call("GET", "/v1/streams", owner="", sec_fetch_site="cross-site", sec_fetch_mode="no-cors")
    service.stop()
    return Row(passed=status == 403, result=f"status {status}")


def logs(folder: Path, seconds: float) -> Row:
    """Characters in a path that a terminal takes for commands."""
    service = Service(folder, "--encoder", "none")
    service.call("GET", "/v1/streams/%C2%9B2J%E2%80%AE")
    service.stop(signal.SIGTERM)
    raw = (service.data / "logs" / "access.jsonl").read_bytes()
    return Row(passed=raw.isascii(), result="escaped" if raw.isascii() else "raw")


def states(folder: Path, seconds: float) -> Row:
    """The same state, downloaded four times."""
    service = Service(folder, "--encoder", "none")
    stream = service.create(small())
    found = {hashlib.sha256(service.call("GET", f"{stream}/state")[1]).hexdigest() for _ in range(4)}
    service.stop()
    return Row(passed=len(found) == 1, result=f"{len(found)} different files")


ATTACKS: dict[str, Callable[[Path, float], Row]] = {
    work.__name__: work
    for work in (
        pipelining, pings, names, bombs, formats, keys, downloads, bodies, folders, headers, index, sites, logs, states,
    )
}  # fmt: skip


def run(name: str, seconds: float) -> Row:
    """The row of one attack."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {"attack": name, **ATTACKS[name](Path(folder), seconds)}
        except Exception as error:  # a service that went down in any other way
            return {"attack": name, "passed": False, "result": f"{type(error).__name__}: {error}"[:80]}


def measure(arguments: Arguments) -> Iterator[Row]:
    for name in arguments.attacks:
        yield run(name, arguments.seconds)


def table(rows: list[Row]) -> Iterator[str]:
    def cell(row: Row, name: str) -> str:
        return f"{row[name]:,.0f}" if name in row else ""

    heads = ("attack", "passed", "neighbour p99 ms", "worst ms", "peak MB", "what happened")
    passed = {True: "yes", False: "**no**"}
    cells = (
        (row["attack"], passed[row["passed"]], *(cell(row, one) for one in NUMBERS), row["result"]) for row in rows
    )
    yield from markdown_table(heads, cells)
    yield f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"


NUMBERS = ("p99_ms", "worst_ms", "peak_mb")


def main() -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # a small encoder
    parser = command.parser(__doc__)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=6, help="for which an attack goes on")
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments, table)


if __name__ == "__main__":
    main()
