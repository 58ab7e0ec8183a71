"""Many streams in one set of features: a session per key, each key's samples in their own order.

A stream is a camera, a tenant, a site: what it learns must not depend on the others. Streams are scored one by one, or
on many machines at once, with the same digits either way: each job has one torch thread and memory of its own.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.errors import DataError
from unseen.spec import SessionSpec
from unseen.storage.files import replacing, sync_folder
from unseen.verdicts import Verdicts

BATCH = 2048  # samples per step: working memory follows it, not the stream


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread in this block: sums are then taken in the same order on every machine of a kind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class KeyedStream(NamedTuple):
    """The samples of one key, in the order in which they came."""

    key: str
    rows: Int[Tensor, " n"]


class KeyedSummary(NamedTuple):
    """Counts of one run over a stream (samples, known, doubtful), and of the whole life of the stream."""

    samples: int
    known: int
    doubtful: int
    taught_known: int
    taught_unknown: int
    seen: int
    threshold: float


class StreamResult(NamedTuple):
    """The verdicts on one stream, their summary, and, if kept, the state after it as the bytes of a file."""

    key: str
    verdicts: Verdicts
    summary: KeyedSummary
    state: bytes


@dataclass(frozen=True)
class StreamJob:
    """How every stream is scored."""

    spec: SessionSpec
    learn: bool = True
    live: bool = False  # whether each sample is judged as it comes, not at the end by everything learned
    keep_state: bool = False  # whether results hold the state

    def run(self, key: str, z: Float[Tensor, "n d"], before: bytes | None = None) -> StreamResult:
        """The verdicts on a stream, going on from the state `before`; nothing else is changed."""
        with one_thread():
            session = self.spec.build() if before is None else self.spec.resume(before)
            act, start = session.observe if self.learn else session.score, session.snapshot
            # cloned, because alignment changes how products round
            verdicts = Verdicts.joined([act(part.clone()) for part in z.split(BATCH)])
            if self.learn and not self.live:
                verdicts = session.rejudge(z.clone(), since=start)
            state = session.to_bytes() if self.keep_state else b""
            tally, known, doubtful = session.snapshot.tally, int(verdicts.known.sum()), int(verdicts.doubtful.sum())
            life = int(tally.taught_known), int(tally.taught_unknown), int(tally.seen), session.threshold
            return StreamResult(key, verdicts, KeyedSummary(len(verdicts), known, doubtful, *life), state)


# Runs a job on streams, given all features and the states to go on from; results come in any order
StreamRunner = Callable[[StreamJob, Sequence[KeyedStream], Tensor, Mapping[str, bytes]], Iterator[StreamResult]]


def split(keys: Sequence[str]) -> list[KeyedStream]:
    """One stream per distinct key, in order of first appearance."""
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [KeyedStream(key, torch.tensor(found)) for key, found in rows.items()]


def run_serially(
    job: StreamJob, streams: Sequence[KeyedStream], z: Tensor, states: Mapping[str, bytes]
) -> Iterator[StreamResult]:
    """Yield the result of every stream, one after the other: the reference for any other runner."""
    return (job.run(stream.key, z[stream.rows], states.get(stream.key)) for stream in streams)


def joined(streams: Sequence[KeyedStream], results: Iterable[StreamResult]) -> Verdicts:
    """The verdicts of all streams as one table, in the order of the input."""
    by_key = {result.key: result.verdicts for result in results}
    if missing := [stream.key for stream in streams if stream.key not in by_key]:
        raise DataError(f"expected a result for every stream, got none for {missing[:3]}; run it again")
    order = torch.cat([stream.rows for stream in streams]).argsort()
    return Verdicts.joined([by_key[stream.key] for stream in streams]).select(order)


def read_states(folder: Path, streams: Iterable[KeyedStream]) -> dict[str, bytes]:
    """The states of the streams that have one in `folder`."""
    paths = {stream.key: state_path(folder, stream.key) for stream in streams}
    return {key: path.read_bytes() for key, path in paths.items() if path.exists()}


@contextmanager
def staged_states(folder: Path) -> Iterator[Callable[[StreamResult], None]]:
    """Yield what keeps the state of a result; states take their places when the block ends well, none when not.

    So a run that failed can be run again: no stream has learned its samples already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as staged:

        def keep(result: StreamResult) -> None:
            """Write the state of a result."""
            with replacing(state_path(Path(staged), result.key)) as temporary:
                temporary.write_bytes(result.state)

        yield keep
        for path in sorted(Path(staged).iterdir()):
            path.replace(folder / path.name)
        sync_folder(folder)


def state_path(folder: Path, key: str) -> Path:
    """The file of a stream: its key as far as a file name allows, and a hash that keeps keys apart."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return folder / f"{quote(key, safe='')[:80]}-{digest}.safetensors"
