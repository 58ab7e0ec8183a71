"""Thirteen attacks on a service, most of which brought one down, or its data, and what they do today.

    python benchmarks/attack.py            # a table, in less than five minutes
    python benchmarks/attack.py --json --attacks pipelining names
    make fuzz                              # malformed requests alone, for two minutes

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
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import count, cycle
from pathlib import Path
from typing import Any

import fuzz
from served import RAW, Attacked, Service, cli, labels_bytes, unit_rows
from unseen import LabelSpace
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space

MOST_MS, MOST_MB = 500, 1_500
DIM = 64


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
    requests = b"GET /v1/streams HTTP/1.1\r\nhost: a\r\n\r\n" * 40_000
    with Attacked(folder, small()) as attacked, ExitStack() as held:
        sent = {held.enter_context(attacked.service.socket()): 0 for _ in range(100)}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for one in sent:
                one.setblocking(False)
                with suppress(OSError):
                    sent[one] += one.send(requests[sent[one] % 37 :])
            time.sleep(0.02)
    return attacked.row(f"{sum(sent.values()) / 37:,.0f} requests were taken")


def names(folder: Path, seconds: float) -> Row:
    """A label space whose names have a million characters each."""
    z, size = label_space(20, 20, DIM), 0
    long = LabelSpace(tuple(f"{n}" * 1_000_000 for n in range(8, 28)), z.negatives, z.id_anchors, z.ood_anchors)
    with Attacked(folder, small()) as attacked:
        if stream := attacked.service.create(long):
            body = unit_rows(512, DIM)
            size = len(attacked.service.call("POST", f"{stream}/score", body, content_type=RAW)[1])
    return attacked.row(f"an answer of {size:,} bytes" if stream else "refused", passed=not stream)


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

    files, side = [], max(500, int(500 * seconds))
    fast = {"lossless": True, "quality": 0, "method": 0}
    for kind, pixels, options in (("JPEG2000", side, {}), ("WEBP", 2 * side, fast)):
        picture, file = Image.effect_noise((pixels, pixels), 100).convert("RGB"), io.BytesIO()
        picture.save(file, kind, **options)
        files.append(file.getvalue())
    return images(folder, files, seconds, callers=4)


def images(folder: Path, files: list[bytes], seconds: float, *, callers: int) -> Row:
    """Callers that upload images to a service with a small encoder; health is looked at meanwhile."""
    from helpers.tiny_models import save_clip

    health, statuses, turns = list[float](), list[int](), count()
    with Attacked(folder, label_space(20, 20, 8), "--encoder", str(save_clip(folder / "clip"))) as attacked:
        service = attacked.service

        def upload() -> None:
            file = files[next(turns) % len(files)]
            path = f"{attacked.stream}/observe"
            statuses.append(service.call("POST", path, file, content_type="image/webp")[0])

        def look() -> None:
            started = time.perf_counter()
            service.call("GET", "/healthz", owner="")
            health.append(time.perf_counter() - started)
            time.sleep(0.02)

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(many, upload, callers, seconds)
            many(look, 1, seconds)
            busy.result()
    slowest = 1000 * max(health)
    return attacked.row(f"{len(statuses)} answered, health within {slowest:.0f} ms") | {"health_ms": slowest}


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
    with Attacked(folder, label_space(1000, 6000, 512)) as attacked, ExitStack() as held:
        for _ in range(40):
            one = held.enter_context(attacked.service.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall((attacked.head("GET", "/state") + "\r\n").encode())
        calls = [("GET", attacked.stream, None), ("GET", "/v1/streams", None)]
        waited = slowest(attacked.service, calls, seconds)
    return attacked.row(f"the owner's own calls within {waited:.1f} s", passed=waited < 5)


def bodies(folder: Path, seconds: float) -> Row:
    """260 requests of one owner whose bodies do not come: does the owner get other answers?"""
    with Attacked(folder, small()) as attacked, ExitStack() as held:
        head = attacked.head("POST", "/observe") + f"content-type: {RAW}\r\ncontent-length: {4 * DIM}\r\n\r\nx"
        for _ in range(260):
            held.enter_context(attacked.service.socket()).sendall(head.encode())
        time.sleep(0.5)
        calls = [("POST", f"{attacked.stream}/observe", unit_rows(1, DIM)), ("GET", attacked.stream, None)]
        waited = slowest(attacked.service, calls, seconds)
    return attacked.row(f"the owner's own calls within {waited:.1f} s", passed=waited < 5)


def slowest(service: Service, calls: Sequence[tuple[str, str, bytes | None]], seconds: float) -> float:
    """The longest time that one of some calls took, again and again for `seconds`; one that is refused or takes
    longer than twice that counts as a minute."""
    times, until = [0.0], time.monotonic() + seconds
    for method, path, body in cycle(calls):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
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
    with Service(folder, "--encoder", "none", keys=False) as service:
        mode, started = data.stat().st_mode & 0o777, bool(service.url.hostname)
    return Row(passed=mode == 0o775 and not started, result=f"started: {started}, then {mode:o}")


def headers(folder: Path, seconds: float) -> Row:
    """A header of 64 MB, in pieces."""
    with Attacked(folder, small()) as attacked, attacked.service.socket() as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: ")
        taken = 0
        with suppress(OSError):
            for _ in range(1024):
                taken += one.send(b"x" * 65536)
        time.sleep(seconds / 2)
    # what the system itself holds on the way
    return attacked.row(f"{taken >> 10:,} kB were taken", passed=taken < 16 << 20)


def index(folder: Path, seconds: float) -> Row:
    """An index of idempotency keys that was altered: is a retry learned twice without notice?"""
    body = unit_rows(1, DIM)
    with Service(folder, "--encoder", "none") as service:
        stream = service.create(small())
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
    data[data.index(hashlib.blake2b(b"key 7", digest_size=16).digest(), start, start + page)] ^= 1
    journal.write_bytes(data)
    with Service(folder, "--encoder", "none", keys=False) as again:
        again.keys = service.keys
        status, answer = again.call("POST", f"{stream}/observe", body, content_type=RAW, idempotency_key="key 7")
    noticed = status == 503 or bool(json.loads(answer).get("repeated"))
    return Row(passed=noticed, result=f"status {status}, " + ("noticed" if noticed else "learned twice"))


def sites(folder: Path, seconds: float) -> Row:
    """GET by a page of another site, where no key is needed."""
    with Service(folder, "--encoder", "none", keys=False) as service:
        status, _ = service.call("GET", "/v1/streams", sec_fetch_site="cross-site", sec_fetch_mode="no-cors")
    return Row(passed=status == 403, result=f"status {status}")


def states(folder: Path, seconds: float) -> Row:
    """The same state, downloaded four times."""
    with Service(folder, "--encoder", "none") as service:
        stream = service.create(small())
        found = {hashlib.sha256(service.call("GET", f"{stream}/state")[1]).hexdigest() for _ in range(4)}
    return Row(passed=len(found) == 1, result=f"{len(found)} different files")


def malformed(folder: Path, seconds: float) -> Row:
    """Four callers whose requests are wrong in one way or another: is there an answer of 500?"""
    with Attacked(folder, small()) as attacked, ThreadPoolExecutor(4) as pool:
        words = attacked.service, attacked.stream, labels_bytes(small()), seconds
        parts = [pool.submit(fuzz.answers, *words, seed) for seed in range(4)]
        found = sum((part.result() for part in parts), Counter[int]())
    return attacked.row(f"{found.total():,} requests, {found[500]} of them 500", passed=not found[500])


ATTACKS: dict[str, Callable[[Path, float], Row]] = {
    work.__name__: work
    for work in (
        pipelining, names, bombs, formats, keys, downloads, bodies, folders, headers, index, sites, states, malformed,
    )
}  # fmt: skip


def run(name: str, seconds: float, *, within: float = MOST_MS) -> Row:
    """The row of one attack; it fails where somebody else waited for `within` milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = ATTACKS[name](Path(folder), seconds)
        except Exception as error:  # a service that went down in any other way
            row = Row(passed=False, result=f"{type(error).__name__}: {error}"[:80])
    waited = max(row.get("p99_ms", 0.0), row.get("health_ms", 0.0))
    return {"attack": name, **row, "passed": row["passed"] and waited < within and row.get("peak_mb", 0) < MOST_MB}


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
    rows = command.show(measure(arguments), arguments, table)
    sys.exit(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    main()
