"""Servers in processes of their own, and callers that keep them busy: what the benchmarks of the service share."""

from __future__ import annotations

import multiprocessing
import os
import re
import selectors
import socket
import sqlite3
import statistics
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from unseen_bench.run import Row

SPAWN = multiprocessing.get_context("spawn")


def service(pipe: Connection, data: Path, space: Path, detector: str, kind: str, threads: int) -> None:
    from unseen.serve.client import Client
    from unseen.serve.run import run
    from unseen.serve.settings import Settings

    def announce(text: str) -> None:
        threading.Thread(target=create, args=(text.split()[2],), daemon=True).start()

    def create(url: str) -> None:
        with Client(url, retries=20) as client:
            client.ask("GET", "/readyz", again=True)
            remote = client.create(space, detector=detector)
        pipe.send((url.removeprefix("http://"), f"/v1/streams/{remote.id}/observe"))

    settings = Settings(data, encoder=None, compute=threads)
    run(settings, port=0, demo=False, announce=announce)


def observes(host: str, path: str, z: torch.Tensor, batch: int, key: str = "") -> list[bytes]:
    """Requests that observe batches of samples as float32 rows."""
    bodies = [part.numpy().tobytes() for part in z.split(batch) if len(part) == batch]
    return [post(host, path, body, "application/octet-stream", key) for body in bodies]


def post(host: str, path: str, body: bytes, media: str, key: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {media}\r\ncontent-length: {len(body)}\r\n"
    return (head + authorization(key)).encode() + b"\r\n" + body


def get(host: str, path: str, key: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\n{authorization(key)}\r\n".encode()


def authorization(key: str) -> str:
    return f"authorization: Bearer {key}\r\n" if key else ""


@dataclass
class Caller:
    """One connection that asks again as soon as it is answered."""

    socket: socket.socket
    number: int  # of the body it sends
    started: float = 0.0
    buffer: bytes = b""


class Load:
    """Callers in one thread that keep a server busy, and everything it answered."""

    def __init__(self, host: str, requests: list[bytes], clients: int) -> None:
        self.requests = requests
        self.address = (host.split(":")[0], int(host.split(":")[1]))
        self.clients = clients
        self.times: list[float] = []
        self.answers: list[tuple[int, bytes]] = []  # which body, what was said of it
        self.errors = 0

    def run(self, seconds: float) -> float:
        """For how long the callers called; the answers to the last requests count and are waited for."""
        selector, started = selectors.DefaultSelector(), time.perf_counter()
        for number in range(self.clients):
            connection = socket.create_connection(self.address, timeout=60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller = Caller(connection, number)
            selector.register(connection, selectors.EVENT_READ, caller)
            self._ask(caller)
        while selector.get_map():
            for key, _ in selector.select(60):
                if self._heard(key.data):
                    key.data.number += self.clients
                    if time.perf_counter() - started < seconds:
                        self._ask(key.data)
                        continue
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
        return time.perf_counter() - started

    def _ask(self, caller: Caller) -> None:
        caller.started, caller.buffer = time.perf_counter(), b""
        caller.socket.sendall(self.requests[caller.number % len(self.requests)])

    def _heard(self, caller: Caller) -> bool:
        came = caller.socket.recv(1 << 20)
        if not came:
            raise ConnectionError("the server hung up")
        caller.buffer += came
        head, found, body = caller.buffer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE) if found else None
        if length is None or len(body) < int(length[1]):
            return False
        self.times.append(time.perf_counter() - caller.started)
        if head.startswith(b"HTTP/1.1 200"):
            self.answers.append((caller.number % len(self.requests), body))
        else:
            self.errors += 1
        return True


def journal_blocks(folder: Path, dim: int) -> list[torch.Tensor]:
    """The blocks of features in a stream's journal, read by nothing but SQLite."""
    with closing(sqlite3.connect(folder / "journal.db")) as db:
        rows = db.execute("SELECT payload FROM entries WHERE kind = 'observe' ORDER BY id").fetchall()
    return [torch.frombuffer(bytearray(row[0]), dtype=torch.float32).view(-1, dim).clone() for row in rows]


def percentiles(times: list[float]) -> Row:
    found = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return {"p50_ms": 1e3 * found[49], "p99_ms": 1e3 * found[98]}


def cpu_seconds(pid: int | None) -> float:
    """The seconds of CPU time a process has used, by Linux's count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
