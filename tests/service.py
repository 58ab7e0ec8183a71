"""Real service processes for the tests: started in a moment because a fork server has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import torch
from torch import Tensor

from unseen import Session
from unseen.serve.app import Settings
from unseen.serve.client import Client, Remote
from unseen.serve.limits import Limits
from unseen.serve.run import run
from unseen.serve.stream import Config, Durability

# a fork server finds what to import by this alone; without it every service would import torch again
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["service"])


def child(pipe: Connection, settings: Settings, room: int | None) -> None:
    torch.set_num_threads(1)
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.environ["UNSEEN_TEST"] = "1"
    run(settings, port=0, demo=False, announce=pipe.send)


class Server:
    """One process on a free loopback port."""

    def __init__(
        self,
        data: Path,
        *,
        limits: Limits | None = None,
        room: int | None = None,
        encoder: str | None = None,
        **durability: Any,
    ) -> None:
        settings = Settings(data, encoder=encoder, limits=limits or Limits(), durability=Durability(**durability))
        ours, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=child, args=(theirs, settings, room), daemon=True)
        self.process.start()
        theirs.close()
        if not ours.poll(30):
            raise TimeoutError("the service did not say where it listens")
        self.url = ours.recv().split()[2]
        self.client = Client(self.url, timeout=10)
        ours.close()

    def ready(self) -> Server:
        for _ in range(600):
            try:
                if self.client.http.get("/readyz").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        raise TimeoutError("the service did not get ready")

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
    """Return the blocks of features in a stream's journal, read by nothing but SQLite."""
    with sqlite3.connect(folder / "journal.db") as db:
        rows = db.execute("SELECT payload FROM entries WHERE kind = 'observe' ORDER BY id").fetchall()
    db.close()
    return [torch.frombuffer(bytearray(row[0]), dtype=dtype).view(-1, dim).clone() for row in rows]


def reference(config: Config, labels: Any, parts: list[Tensor]) -> Session:
    """Return a fresh session that has observed `parts` in order."""
    session = config.session(labels)
    for part in parts:
        session.observe(part)
    return session


def flat(session: Session) -> dict[str, Tensor]:
    return {
        f"{name}.{field}": tensor
        for name, state in session.snapshot._asdict().items()
        if state is not None
        for field, tensor in state._asdict().items()
    }


def downloaded(remote: Remote, labels: Any, path: Path) -> dict[str, Tensor]:
    remote.state(path)
    return flat(Session.load(path, labels))


def different(left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """Return by how much two states differ, where they do not agree bit by bit."""
    assert left.keys() == right.keys()
    gaps = {name: (left[name].double() - right[name].double()).abs().max() for name in left}
    return {name: float(gap) for name, gap in gaps.items() if not torch.equal(left[name], right[name])}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Say whether two states are equal bit by bit."""
    return not different(left, right)
