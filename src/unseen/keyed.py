"""Many streams in one set of features: a session per key, each key's samples in their own order.

A stream is a camera, a tenant, a site: what it learns must not depend on the others. So streams are scored one by one,
or on many machines at once, with the same digits either way: each scan has one torch thread and memory of its own.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen import detectors
from unseen.detectors import Reading
from unseen.errors import DataError, SettingError
from unseen.labels import LabelSpace
from unseen.session import Session, Verdicts
from unseen.storage.files import replacing
from unseen.threads import one_thread
from unseen.threshold import Adaptive, Cuts, Threshold

BATCH = 2048  # samples per step: working memory follows it, not the stream


class Stream(NamedTuple):
    """The samples of one key, in the order in which they came."""

    key: str
    rows: Int[Tensor, " n"]


class Summary(NamedTuple):
    """What a stream has come to."""

    samples: int
    known: int
    taught_known: int
    taught_unknown: int
    seen: int
    cut: float


class Scan(NamedTuple):
    """The verdicts on one stream, what it has come to, and, if kept, its state as the bytes of a file."""

    key: str
    reading: tuple[Tensor, ...]
    cuts: tuple[Tensor, ...]
    summary: Summary
    state: bytes


@dataclass(frozen=True)
class Recipe:
    """How every stream is scored."""

    labels: LabelSpace
    detector: str = "default"
    threshold: Threshold[Any] = Adaptive()  # noqa: RUF009 (a frozen value)
    learn: bool = True
    keep: bool = False  # whether scans bring their state with them

    def scan(self, key: str, z: Float[Tensor, "n d"], before: bytes | None = None) -> Scan:
        """Return the verdicts on a stream in its order, going on from the state `before`; nothing else is changed."""
        with one_thread():
            session = self._session(before)
            act = session.observe if self.learn else session.score
            parts = [act(part.clone()) for part in z.split(BATCH)]  # cloned: alignment changes how products round
            reading = Reading.joined([part.reading for part in parts])
            cuts = tuple(map(torch.cat, zip(*(part.cuts for part in parts), strict=True)))
            return Scan(key, tuple(reading), cuts, _summary(session, parts), _saved(session) if self.keep else b"")

    def _session(self, before: bytes | None) -> Session:
        if before is None:
            return Session(detectors.make(self.detector, self.labels), self.threshold)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            path.write_bytes(before)
            session = Session.load(path, self.labels)
        if session.detector.name != self.detector:
            raise SettingError(
                f"expected --detector {session.detector.name}, the one the state was learned with, got "
                f"{self.detector}; name that detector or another folder"
            )
        return session


Scans = Callable[[Recipe, Sequence[Stream], Tensor, Mapping[str, bytes]], Iterator[Scan]]  # in any order


def split(keys: Sequence[str]) -> list[Stream]:
    """Return one stream per distinct key, in order of first appearance."""
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [Stream(key, torch.tensor(found)) for key, found in rows.items()]


def in_turn(recipe: Recipe, streams: Sequence[Stream], z: Tensor, states: Mapping[str, bytes]) -> Iterator[Scan]:
    """Yield the scan of every stream, one after the other: the reference for any other way."""
    return (recipe.scan(stream.key, z[stream.rows], states.get(stream.key)) for stream in streams)


def joined(recipe: Recipe, streams: Sequence[Stream], scans: Iterable[Scan]) -> Verdicts:
    """Return the verdicts of all streams as one, in the order of the input."""
    by_key = {scan.key: scan for scan in scans}
    if missing := [stream.key for stream in streams if stream.key not in by_key]:
        raise DataError(f"expected a scan of every stream, got none of {missing[:3]}; run it again")
    order = torch.cat([stream.rows for stream in streams]).argsort()
    ordered = [by_key[stream.key] for stream in streams]
    reading = Reading(*(torch.cat(column)[order] for column in zip(*(scan.reading for scan in ordered), strict=True)))
    cuts = Cuts(*(torch.cat(column)[order] for column in zip(*(scan.cuts for scan in ordered), strict=True)))
    return Verdicts(recipe.labels.names, reading, cuts)


def read_states(folder: Path, streams: Iterable[Stream]) -> dict[str, bytes]:
    """Return the states of the streams that have one in `folder`."""
    paths = {stream.key: state_path(folder, stream.key) for stream in streams}
    return {key: path.read_bytes() for key, path in paths.items() if path.exists()}


def write_state(folder: Path, scan: Scan) -> None:
    """Keep the state of a stream, whole or not at all."""
    with replacing(state_path(folder, scan.key)) as temporary:
        temporary.write_bytes(scan.state)


def state_path(folder: Path, key: str) -> Path:
    """Return the file of a stream: its key as far as a file name allows, and a hash that keeps keys apart."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return folder / f"{quote(key, safe='')[:80]}-{digest}.safetensors"


def _saved(session: Session) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        session.save(path)
        return path.read_bytes()


def _summary(session: Session, parts: Sequence[Verdicts]) -> Summary:
    tally = session.snapshot.tally
    known = sum(int(part.known.sum()) for part in parts)
    taught = (int(tally.taught_known), int(tally.taught_unknown))
    return Summary(sum(map(len, parts)), known, *taught, int(tally.seen), session.line)
