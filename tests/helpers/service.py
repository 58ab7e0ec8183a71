"""Service processes for tests, started in a moment by a fork server, and the parts of `unseen.serve` that tests use."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
import uvicorn
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space
from unseen import LabelSpace, Session
from unseen.detectors.state import flatten
from unseen.encoders import preprocess
from unseen.errors import ServiceError
from unseen.serve import run as serve_run
from unseen.serve.backup import copy_stream
from unseen.serve.client import Client, Remote
from unseen.serve.http.app import create_app
from unseen.serve.http.auth import ApiKeys, is_loopback
from unseen.serve.http.log import RequestLog
from unseen.serve.http.service import Service
from unseen.serve.run import hush_libraries, listening_socket, run
from unseen.serve.settings import INSIDE, PAGE, Durability, Limits, Settings
from unseen.serve.stream.batch import BatchVerdicts, sample_batch
from unseen.serve.stream.disk import session_bytes, state_bytes
from unseen.serve.stream.folder import DataFolder, StreamConfig, read_config, write_config
from unseen.serve.stream.history import History, RecentItems, UnknownAlarm
from unseen.serve.stream.journal import TIP, Journal, JournalEntry, Position
from unseen.serve.stream.kept import edit_stream, stream_groups, undone
from unseen.serve.stream.store import StreamStore
from unseen.serve.stream.stream import Stream
from unseen.serve.work.jobs import Jobs
from unseen.serve.work.threads import MicroBatcher, RateLimiter

# a fork server finds what to import by this alone; without it every service would import torch again
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
LABELS = space(dtype=torch.float32)  # of most streams of the tests
CONFIG = StreamConfig("", "", "*", "online")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["helpers.service"])
START = 90  # seconds that a service may take: the first of a cold machine reads torch from disk


class StuckService(Service):
    """A service with work that does not end."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.store.threads.chores("a").submit(time.sleep, 60)


def child(pipe: Connection, settings: Settings, room: int | None, port: int = 0, stuck: bool = False) -> None:
    torch.set_num_threads(1)
    if stuck:
        setattr(serve_run, "Service", StuckService)  # noqa: B010
        settings = replace(settings, durability=Durability(end_seconds=1))
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.environ["UNSEEN_CACHE"] = str(settings.data / "cache")
    run(settings, port=port, demo=False, announce=pipe.send)


class Server:
    """One process on a free loopback port."""

    def __init__(
        self,
        data: Path,
        *,
        limits: Limits | None = None,
        room: int | None = None,
        encoder: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        stuck: bool = False,
        logs: Path | None = None,
        behind_proxy: bool = False,
        **durability: Any,
    ) -> None:
        settings = Settings(
            data, host, encoder, limits or Limits(), Durability(**durability), logs=logs, behind_proxy=behind_proxy
        )
        self.data = data
        ours, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=child, args=(theirs, settings, room, port, stuck), daemon=False)
        self.process.start()
        theirs.close()
        if not ours.poll(START):
            raise TimeoutError("the service did not say where it listens")
        self.url = ours.recv().split()[2]
        self.client = Client(self.url, timeout=30)
        ours.close()

    def ready(self) -> Server:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            try:
                if self.client.http.get("/readyz").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        raise TimeoutError("the service did not get ready")

    def connect(self) -> socket.socket:
        """A connection that is not yet HTTP."""
        url = httpx.URL(self.url)
        return socket.create_connection((url.host, url.port), timeout=10)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: int) -> None:
        self.client.close()
        if self.process.is_alive():
            os.kill(self.process.pid, how)
        self.process.join(20)
        alive = self.process.is_alive()
        if alive:
            self.process.kill()
            self.process.join(5)
        self.process.close()
        assert not alive, "the service did not stop"

    def __enter__(self) -> Server:
        return self.ready()

    def __exit__(self, *_: object) -> None:
        self.stop()


def blocks(folder: Path, dtype: torch.dtype, dim: int) -> list[Tensor]:
    """The blocks of features in a stream's journal, read by nothing but SQLite."""
    with sqlite3.connect(folder / "journal.db") as db:
        rows = db.execute("SELECT payload FROM entries WHERE kind = 'observe' ORDER BY id").fetchall()
    db.close()
    return [torch.frombuffer(bytearray(row[0]), dtype=dtype).view(-1, dim).clone() for row in rows]


def refusal(work: Callable[[], object]) -> int:
    """The status of the error that work raises; 200 where it raises none."""
    try:
        work()
    except ServiceError as error:
        return error.status
    return 200


def create(client: Client, labels: LabelSpace = LABELS, **wanted: Any) -> Remote:
    """A new stream over a label space."""
    with TemporaryDirectory() as folder:
        labels.save(Path(folder) / "space")
        return client.create(Path(folder) / "space", **{"detector": "online", **wanted})


@contextmanager
def open_store(data: Path, **settings: Any) -> Iterator[StreamStore]:
    """Yield the streams of a data folder, open in this process."""
    streams = StreamStore(DataFolder(data), Settings(data, **settings))
    streams.open_all()
    try:
        yield streams
    finally:
        streams.close()


def learned(parts: list[Tensor], config: StreamConfig = CONFIG) -> dict[str, Tensor]:
    """The state of a session that has observed `parts` in order."""
    session = config.spec(LABELS).build()
    for part in parts:
        session.observe(part)
    return flat(session)


def flat(session: Session) -> dict[str, Tensor]:
    return {
        f"{name}.{field}": tensor
        for name, state in session.snapshot._asdict().items()
        for field, tensor in flatten(state).items()
    }


def downloaded(remote: Remote) -> dict[str, Tensor]:
    """The state of a stream."""
    with TemporaryDirectory() as folder:
        remote.state(Path(folder) / "state")
        return flat(Session.load(Path(folder) / "state", LABELS))


def different(left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """By how much two states differ, where they do not agree bit by bit."""
    assert left.keys() == right.keys()
    gaps = {name: (left[name].double() - right[name].double()).abs().max() for name in left if left[name].numel()}
    return {name: float(gap) for name, gap in gaps.items() if not torch.equal(left[name], right[name])}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two states are equal bit by bit."""
    return not different(left, right)


class Rounding:
    """An encoder whose vectors differ in the last bits from call to call, as batches of other sizes do, and slowly."""

    name, fingerprint = "rounding", "r" * 64

    def __init__(self, dim: int, seconds: float = 0.0) -> None:
        self.dim, self.calls, self.seconds, self.sizes = dim, 0, seconds, []

    prepare = staticmethod(preprocess.CLIP.cropped)

    def vectors(self, pixels: Tensor) -> Tensor:
        self.calls += 1
        self.sizes.append(len(pixels))
        time.sleep(self.seconds * len(pixels))
        return normalize(torch.ones(len(pixels), self.dim) + 1e-6 * self.calls * torch.arange(self.dim), dim=-1)


@contextmanager
def serving(data: Path, encoder: Any) -> Iterator[str]:
    """Serve with an encoder of our own, from a thread of this process."""
    app = create_app(Service(Settings(data, encoder="ours")))
    app.state.service.encoder._encoder = encoder
    listener = listening_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with Client(url, retries=20) as client:
            client.ask("GET", "/readyz", again=True)
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
