"""One stream: a session that one writer teaches, a journal of everything it was taught, and snapshots."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from unseen import LabelSpace, checkpoint
from unseen.detectors.state import flatten
from unseen.errors import ServiceError, StateError
from unseen.serve.settings import Durability
from unseen.serve.stream.batch import BatchVerdicts, SampleBatch, first_of_each_key, raw_bytes, split_by_batch
from unseen.serve.stream.config import StreamConfig
from unseen.serve.stream.disk import expected_bytes
from unseen.serve.stream.fresh import fresh_session
from unseen.serve.stream.history import History
from unseen.serve.stream.journal import (
    OBSERVE,
    RESET,
    RESTORE,
    TIP,
    Journal,
    JournalEntry,
    Position,
    Receipt,
    Retention,
    SqliteJournal,
)
from unseen.serve.stream.memory import session_bytes
from unseen.serve.stream.room import no_room
from unseen.serve.stream.snapshots import AUTO, AUTOS, DAMAGED, KEPT, RESTORED, SavedSnapshot, SnapshotFolder
from unseen.session import Session
from unseen.storage.files import claimed_checksum
from unseen.verdicts import VERDICT_DTYPE, VerdictArray

log = logging.getLogger("unseen.serve")


class Stream:
    """One writer at a time behind a lock; readers use the last state whose block is on disk."""

    def __init__(self, folder: Path, config: StreamConfig, durability: Durability) -> None:
        self.folder, self.config, self.durability = folder, config, durability
        self.labels = shared_space(folder / "space.safetensors")
        self.snapshots = SnapshotFolder(folder / "snapshots", durability.kept)
        self.faults: list[str] = []
        self.snapshot_queued = False
        self.on_commit: Callable[[float], object] = lambda seconds: None
        self.used = 0.0  # when something was last written
        self.replay_seconds = 0.0  # that a restart would take for what no snapshot covers
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._retention: Retention | None = None
        self._closed = False
        self.start = self.at = Position.start(f"{config.id} {self.labels.fingerprint}")
        self._recover()

    def fresh(self) -> Session:
        """Return a session as it was before the first sample."""
        return fresh_session(self.config, self.labels)

    def score(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
        """Return verdicts for a block without learning anything."""
        verdicts = self.readers.score(torch.cat([batch.z for batch in batches])).structured()
        return [BatchVerdicts(-1, own) for own in split_by_batch(verdicts, batches)]

    def observe(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
        """Learn from a block, wait until it is on disk, then let readers see it and answer."""
        with self._lock:
            self._refresh()
            repeated = [self._answered_before(batch) for batch in batches]
            fresh = first_of_each_key([b for b, answer in zip(batches, repeated, strict=True) if answer is None])
            learned = dict(zip(map(id, fresh), self._learn(fresh), strict=True)) if fresh else {}
            # a key that came twice in one block is answered from the receipt of the first
            return [
                old or learned.get(id(batch)) or self._answered_before(batch) or _key_used_twice()
                for batch, old in zip(batches, repeated, strict=True)
            ]

    def reset(self) -> None:
        """Forget everything learned; sequence numbers go on."""
        with self._lock:
            self._refresh()
            self._append(JournalEntry(RESET, 0, b""))
            self._begin(self.fresh())

    def snapshot(self, kind: str = KEPT) -> SavedSnapshot:
        """Write the state readers see to a file of its own, while the writer goes on."""
        with self._saving:
            covered = self.replay_seconds
            session, at = self._published()
            saved = self.snapshots.new(kind, at.entry)
            session.save(saved.path, position=list(at))
            if kind == AUTO:
                self._snapshotted = at.seq
                with self._lock:
                    self.replay_seconds -= covered
                keep = self.durability
                self._retention = self.snapshots.rotate(at, retain=keep.retain, receipts=keep.receipts)
            return saved

    def restore(self, source: Path) -> None:
        """Take over the state in a file; the journal records it as one more entry."""
        session = self.fresh().resumed(checkpoint.load(source))
        refuse_infinite(session)
        with self._lock:
            self._refresh()
            saved = self.snapshots.slot(RESTORED, self.at.entry + 1)
            session.save(saved.path, position=list(self.at))
            self._append(JournalEntry(RESTORE, 0, saved.digest))
            self._begin(session)
        if len(self.snapshots.all(RESTORED)) > AUTOS:
            self.snapshot(AUTO)  # which makes the files of older restores needless

    def export(self, path: Path) -> Position:
        """Write the state readers see to `path`, and return its place in the journal."""
        session, at = self._published()
        session.save(path, position=list(at))
        return at

    @property
    def snapshot_due(self) -> bool:
        """Return whether an automatic snapshot should be taken."""
        return not self.durability.volatile and self.at.seq - self._snapshotted >= self.durability.every

    @property
    def memory(self) -> int:
        """Return the bytes of the state; while a block is learned there are two."""
        return session_bytes(self.readers)

    @property
    def expected_disk(self) -> int:
        """Return the bytes on disk that the stream may come to, without snapshots taken by hand."""
        return expected_bytes(self.labels, self.memory, self.durability)

    def moved(self) -> dict[str, float]:
        """Return for each bank how far its rows have moved from the frozen text on average."""
        state, start = flatten(self.readers.snapshot.detector), flatten(self.fresh().snapshot.detector)
        pairs = {name: (bank, start[name]) for name, bank in state.items() if bank.ndim == 2 and start[name].any()}
        return {
            name: float(torch.linalg.vector_norm(bank - anchors, dim=1).mean())
            for name, (bank, anchors) in pairs.items()
            if bank.shape == anchors.shape and bank.shape[1] == self.labels.dim and len(bank)
        }

    def rest(self) -> None:
        """Close the journal's files until they are needed, unless it is in use."""
        if self._lock.acquire(blocking=False):
            try:
                self.journal.rest()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Take a last snapshot, so that the next start replays nothing, and close the files."""
        if not self.durability.volatile and self.at.seq > self._snapshotted:
            try:
                self.snapshot(AUTO)
            except OSError as error:  # the journal has it all
                log.warning("no snapshot of %s at the end: %s", self.config.id, error)
        self.abandon()

    def abandon(self) -> None:
        """Close the files without a snapshot; callers that still wait for the writer are refused."""
        with self._lock:
            self.journal.close()
            self._closed = True

    def _published(self) -> tuple[Session, Position]:
        with self._lock:
            return self.readers, self.at

    def _answered_before(self, batch: SampleBatch) -> BatchVerdicts | Exception | None:
        found = None if batch.idempotency is None else self.journal.receipt(batch.idempotency)
        if found is None:
            return None
        if found.digest != batch.digest:
            return ServiceError(
                422,
                "expected the features this idempotency key came with first, got others; use a new key",
                "key_reused",
            )
        return BatchVerdicts(found.first, np.frombuffer(found.answer, VERDICT_DTYPE), repeated=True)

    def _learn(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
        z, first, started = torch.cat([batch.z for batch in batches]), self.at.seq, time.perf_counter()
        verdicts = self.writer.observe(z).structured()
        self.replay_seconds += time.perf_counter() - started
        answers, receipts = _numbered(first, verdicts, batches)
        self._append(JournalEntry(OBSERVE, len(z), raw_bytes(z)), receipts)
        self.history.add(first, verdicts)
        self._publish()
        return answers

    @property
    def holds_files(self) -> bool:
        """Return whether the journal's files are open."""
        return isinstance(self.journal, SqliteJournal) and self.journal.is_open

    def _append(self, entry: JournalEntry, receipts: Sequence[Receipt] = ()) -> None:
        self._fresh, started = False, time.perf_counter()  # until it is confirmed, what is on disk is not known
        try:
            self.at = self.journal.append(self.at, entry, receipts, retention=self._retention)
        except (sqlite3.Error, OSError) as error:
            raise no_room(error) from error
        self._retention, self._fresh, self.used = None, True, time.monotonic()
        self.on_commit(time.perf_counter() - started)

    def _refresh(self) -> None:
        """After a failed write, go back to what is on disk, whatever that is."""
        if self._closed:
            raise ServiceError(404, "expected a stream, got one that was deleted; create another")
        if not self._fresh:
            self.journal.close()
            self._recover()

    def _recover(self) -> None:
        path = self.folder / "journal.db"
        self.journal: Journal = Journal() if self.durability.volatile else SqliteJournal(path, self.start)
        if self.journal.lost_tip:
            self.faults.append(f"{TIP} was removed: blocks that were acknowledged may be missing")
        fresh = self.fresh()
        self._begin(fresh)
        self.at = self._from_snapshot(fresh) or self.start
        self._snapshotted = self.at.seq
        self.replayed, started = 0, time.perf_counter()
        for entry, at in self.journal.replay(self.at):
            self._replay(entry, at)
            self.at = at
            self.replayed += entry.count
        self.replay_seconds = time.perf_counter() - started
        self._publish()
        self._compare_arithmetic()
        if ahead := [one.path.name for one in self.snapshots.all(AUTO, KEPT, DAMAGED) if one.entry > self.at.entry]:
            raise StateError(f"expected a journal up to {ahead[-1]}, got one that ends before it; restore a backup")
        self._fresh = True

    def _compare_arithmetic(self) -> None:
        """Report when a replay could not give the bits that were learned; from here on, note what computes."""
        then, now = self.journal.note("arithmetic"), arithmetic()
        if then == now:
            return
        if then and self.replayed:
            self.faults.append(
                f"{self.replayed} samples were learned with {then} and replayed with {now}: equal to rounding"
            )
        self.journal.set_note("arithmetic", now)

    def _from_snapshot(self, fresh: Session) -> Position | None:
        for saved in reversed(self.snapshots.all()):
            try:
                found = checkpoint.load(saved.path)
                at = _position(found.identity, saved.entry)
                session = fresh.resumed(found)
            except OSError:  # of the disk or of file handles; says nothing about the snapshot
                raise
            except Exception as error:  # an altered file may lead anywhere
                log.error("snapshot %s set aside: %s", saved.path.name, error)
                self.faults.append(f"{saved.path.name} was set aside: {error}")
                self.snapshots.set_aside(saved)
            else:
                self._begin(session)
                return at
        return None

    def _replay(self, entry: JournalEntry, at: Position) -> None:
        if entry.kind == RESET:
            self._begin(self.fresh())
        elif entry.kind == RESTORE:
            saved = self.snapshots.slot(RESTORED, at.entry)
            if not saved.path.is_file() or saved.digest != entry.payload:
                raise StateError(f"expected the state {saved.path.name} as it was, got another; restore a backup")
            self._begin(self.fresh().resumed(checkpoint.load(saved.path)))
        else:
            self.history.add(at.seq - entry.count, self.writer.observe(self._features(entry)).structured())

    def _features(self, entry: JournalEntry) -> Tensor:
        flat = torch.frombuffer(bytearray(entry.payload), dtype=self.labels.id_anchors.dtype)
        # cloned, because torch aligns its own memory, and norms and products round by alignment
        return flat.view(entry.count, self.labels.dim).clone()

    def _begin(self, session: Session) -> None:
        self.history, self.writer = History(), session
        self._publish()

    def _publish(self) -> None:
        """Let readers see what the writer has learned."""
        self.readers = self.writer.at(self.writer.snapshot)


_spaces: WeakValueDictionary[str, LabelSpace] = WeakValueDictionary()


def shared_space(path: Path) -> LabelSpace:
    """Return the label space in a file; of files with equal checksums one is read, and streams share it."""
    claimed = claimed_checksum(path)
    found = _spaces.get(claimed)
    return found if found is not None else _spaces.setdefault(claimed, LabelSpace.load(path))


def refuse_infinite(session: Session) -> None:
    """Refuse a state that holds numbers no stream can learn from."""
    for state in session.snapshot:
        for name, tensor in flatten(state).items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise StateError(f"expected a state of finite numbers, got others in {name}; restore another")


def arithmetic() -> str:
    """Return what the bits of a computation depend on beside its input."""
    cores = torch.get_num_threads()
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {cores} compute thread(s)"


def _numbered(
    first: int, verdicts: VerdictArray, batches: Sequence[SampleBatch]
) -> tuple[list[BatchVerdicts], list[Receipt]]:
    answers, receipts = [], []
    for batch, own in zip(batches, split_by_batch(verdicts, batches), strict=True):
        answers.append(BatchVerdicts(first, own))
        if batch.idempotency is not None:
            receipts.append(Receipt(batch.idempotency, batch.digest, first, own.tobytes()))
        first += len(own)
    return answers, receipts


def _position(identity: dict[str, Any], entry: int) -> Position:
    number, seq, chain = identity.get("position", (-1, -1, ""))
    if number != entry:
        raise StateError(f"expected a snapshot of entry {entry}, got one of {number}; restore a copy")
    return Position(number, seq, chain)


def _key_used_twice() -> ServiceError:
    return ServiceError(409, "expected an idempotency key used once at a time, got it twice at once; try again")
