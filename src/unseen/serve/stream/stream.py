"""One stream: a session that one writer teaches, a journal of everything it was taught, and snapshots."""

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from unseen import LabelSpace, checkpoint
from unseen.errors import ServiceError, StateError
from unseen.serve.settings import Durability
from unseen.serve.stream.batch import (
    BatchVerdicts,
    SampleBatch,
    answer_unit,
    first_of_each_key,
    joined,
    key_used_twice,
    numbered_answers,
    raw_bytes,
    split_by_batch,
    unanswered_receipts,
)
from unseen.serve.stream.config import KEPT as MOST_UNKNOWN
from unseen.serve.stream.config import StreamConfig
from unseen.serve.stream.disk import expected_bytes
from unseen.serve.stream.disk_errors import disk_is_full
from unseen.serve.stream.group_numbers import GroupNumbers
from unseen.serve.stream.history import History
from unseen.serve.stream.journal import (
    EDIT,
    GROUP,
    OBSERVE,
    RESET,
    RESTORE,
    TIP,
    Journal,
    JournalEntry,
    Position,
    Retention,
)
from unseen.serve.stream.memory import session_bytes
from unseen.serve.stream.new_session import fresh_session
from unseen.serve.stream.receipts import Receipt
from unseen.serve.stream.recovery import compare_arithmetic, features_of, newest_state
from unseen.serve.stream.snapshots import AUTO, AUTOS, BEFORE, DAMAGED, KEPT, RESTORED, SavedSnapshot, SnapshotFolder
from unseen.serve.stream.spaces import NamesOverTime, SpaceFolder
from unseen.serve.stream.state_checks import refuse_unusable
from unseen.session import Session

log = logging.getLogger("unseen.serve")


class Stream:
    """One writer at a time behind a lock; readers use the last state whose block is on disk."""

    writer: Session

    def __init__(self, folder: Path, config: StreamConfig, durability: Durability) -> None:
        self.folder, self.config, self.durability = folder, config, durability
        self.spaces = SpaceFolder(folder)
        self.snapshots = SnapshotFolder(folder / "snapshots", durability.kept)
        self.faults: list[str] = []
        self.snapshot_queued = False
        self.on_commit: Callable[[float], object] = lambda seconds: None
        self.used = 0.0  # when something was last written
        self.replay_seconds = 0.0  # that a restart would take for what no snapshot covers
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self.grouping = threading.Lock()  # held while samples are grouped: two at once would give a number twice
        self._retention: Retention | None = None
        self._closed = False
        self.start = self.at = Position.start(f"{config.id} {self.spaces.first.fingerprint}")
        self._recover()

    @property
    def labels(self) -> LabelSpace:
        """The label space of the state that readers see."""
        return self.readers.detector.labels

    def fresh(self) -> Session:
        """A session over the label space of now that has observed nothing."""
        return fresh_session(self.config, self.labels)

    def resumed(self, found: checkpoint.Checkpoint) -> Session:
        """A session that goes on from a state over any label space that the stream has had."""
        labels = self.spaces.find(str(found.identity.get("labels"))) or self.labels
        return fresh_session(self.config, labels).resumed(found)

    def score(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
        """Verdicts for a block without learning anything."""
        return answer_unit(self._score, self.labels.id_anchors, batches)

    def _score(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
        verdicts = self.readers.score(joined(batches))
        return [BatchVerdicts(-1, own, verdicts.names) for own in split_by_batch(verdicts.structured(), batches)]

    def observe(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
        """Learn from a block, wait until it is on disk, then let readers see it and answer."""
        return answer_unit(self._observe, self.labels.id_anchors, batches)

    def _observe(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
        with self._lock:
            self._refresh()
            repeated = [self._answered_before(batch) for batch in batches]
            fresh = first_of_each_key([b for b, answer in zip(batches, repeated, strict=True) if answer is None])
            learned = dict(zip(map(id, fresh), self._learn(fresh), strict=True)) if fresh else {}
            # a key that came twice in one block is answered from the receipt of the first
            return [
                old or learned.get(id(batch)) or self._answered_before(batch) or key_used_twice()
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
            session, at = self._flushed()
            saved = self.snapshots.slot(kind, at.entry)
            session.save(saved.path, with_space=False, position=list(at))
            self.snapshots.forget_kept()
            if kind == AUTO:
                self._snapshotted = at.seq
                with self._lock:
                    self.replay_seconds -= covered
                keep = self.durability
                self._retention = self.snapshots.rotate(at, retain=keep.retain, receipts=keep.receipts)
            return saved

    def restore(self, source: Path) -> None:
        """Take over the state in a file; the journal records it as one more entry."""
        self.restore_session(self.usable_session(source))

    def usable_session(self, source: Path) -> Session:
        """A session that goes on from the state in a file, within what a stream may keep; refuse another."""
        session = self.resumed(checkpoint.load(source))
        refuse_unusable(session)
        kept = session.reservoir
        return session.at(session.snapshot, reservoir=replace(kept, unknown=min(kept.unknown, MOST_UNKNOWN)))

    def restore_session(self, session: Session) -> None:
        """Take over a session; the journal records it as one more entry."""
        with self._lock:
            self._refresh()
            self.take_over(RESTORE, session)
        self.cover_restores()

    def take_over(self, kind: str, session: Session) -> None:
        """Go on from another session, once its label space, its state and a journal entry are on disk."""
        self.spaces.add(session.detector.labels)
        saved = self.snapshots.slot(RESTORED, self.at.entry + 1)
        session.save(saved.path, with_space=False, position=list(self.at))
        self._append(JournalEntry(kind, 0, saved.digest))
        self._go_on(kind, session, self.at)

    def _go_on(self, kind: str, session: Session, at: Position) -> None:
        """Let a session take the place of the writer's, after the journal entry that says so."""
        self.names.changed(at, self.writer.detector.labels.fingerprint, session.detector.labels.fingerprint)
        if kind == RESTORE:
            self._begin(session)
        else:
            self.writer = session
            self._publish()

    def cover_restores(self) -> None:
        """Take a snapshot where several states of restores and edits are on disk, which it makes needless."""
        if len(self.snapshots.all(RESTORED)) > AUTOS:
            self.snapshot(AUTO)
        with self._lock:
            needed = {saved.labels for saved in self.snapshots.all(AUTO, KEPT, RESTORED, BEFORE)}
            self.spaces.drop(but=needed | {self.labels.fingerprint})

    def export(self, path: Path) -> Position:
        """Write the state readers see to `path`, and return its place in the journal."""
        session, at = self._published()
        session.save(path, with_space=False, position=list(at))
        return at

    @property
    def snapshot_due(self) -> bool:
        """Whether an automatic snapshot should be taken."""
        return self.at.seq - self._snapshotted >= self.durability.every

    @property
    def memory(self) -> int:
        """The bytes of the state; while a block is learned there are two."""
        return session_bytes(self.readers)

    @property
    def expected_disk(self) -> int:
        """The bytes on disk that the stream may come to, without snapshots taken by hand."""
        return expected_bytes(self.labels, self.memory, self.durability)

    def rest(self) -> None:
        """Close the journal's files until they are needed, unless it is in use."""
        if self._lock.acquire(blocking=False):
            try:
                self.journal.rest()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Take a last snapshot, so that the next start replays nothing, and close the files."""
        if self.at.seq > self._snapshotted:
            try:
                self.snapshot(AUTO)
            except OSError as error:  # the journal has it all
                log.warning("no snapshot of %s at the end: %s", self.config.id, error)
        self.abandon()

    def abandon(self) -> None:
        """Close the files without a snapshot; callers that still wait for the writer are refused.

        A snapshot that is being written is waited for: after the folder is gone it would make it again.
        """
        with self._saving, self._lock:
            self.journal.close()
            self._closed = True

    def _published(self) -> tuple[Session, Position]:
        with self._lock:
            return self.readers, self.at

    def _flushed(self) -> tuple[Session, Position]:
        """What readers see, once its answers are on disk: what a snapshot covers is not replayed."""
        with self._lock:
            self._refuse_closed()
            try:
                self.journal.flush()
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error)) from error
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
        names = self.names.at(found.first)
        return BatchVerdicts(found.first, found.verdicts, names, repeated=True)

    def _learn(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
        z, first, started = joined(batches), self.at.seq, time.perf_counter()
        receipts = unanswered_receipts(batches, first)
        with self._appended_meanwhile(JournalEntry(OBSERVE, len(z), raw_bytes(z)), receipts):
            observed = self.writer.observe(z)
            verdicts = observed.structured()
            self.replay_seconds += time.perf_counter() - started
        self.journal.answer(one.answered(first, verdicts) for one in receipts)
        self.history.add(first, verdicts)
        self._publish()
        return numbered_answers(BatchVerdicts(first, verdicts, observed.names), batches)

    @contextmanager
    def _appended_meanwhile(self, entry: JournalEntry, receipts: Sequence[Receipt]) -> Iterator[None]:
        """Write an entry while it is computed, because a disk takes as long as a sample; both are waited for."""
        before = self.at
        appended = self.journal.run(partial(self._append, entry, receipts))
        try:
            yield
        except BaseException:
            if appended.exception() is None:
                self._take_back(before)
            raise
        appended.result()

    def _take_back(self, to: Position) -> None:
        """Remove the last entry, which could not be computed."""
        self._fresh = False
        with suppress(sqlite3.Error, OSError):  # then the next caller finds out
            self.journal.take_back(to)
            self.at, self._fresh = to, True

    @property
    def holds_files(self) -> bool:
        """Whether the journal's files are open."""
        return self.journal.is_open

    def _append(self, entry: JournalEntry, receipts: Sequence[Receipt] = ()) -> None:
        self._fresh, started = False, time.perf_counter()  # until it is confirmed, what is on disk is not known
        try:
            self.at = self.journal.append(self.at, entry, receipts, retention=self._retention)
        except (sqlite3.Error, OSError) as error:
            raise disk_is_full(error) from error
        self._retention, self._fresh, self.used = None, True, time.monotonic()
        self.on_commit(time.perf_counter() - started)

    def _refresh(self) -> None:
        """After a failed write, go back to what is on disk, whatever that is."""
        self._refuse_closed()
        if not self._fresh:
            self.journal.close()
            self._recover()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ServiceError(404, "expected a stream, got one that was deleted; create another")

    def _recover(self) -> None:
        self.journal = Journal(self.folder / "journal.db", self.start)
        if self.journal.lost_tip:
            self.faults.append(f"{TIP} was removed: blocks that were acknowledged may be missing")
        newest = newest_state(self.snapshots, self.resumed, self.faults)
        session, self.at = newest or (fresh_session(self.config, self.spaces.first), self.start)
        self._begin(session)
        self.names = NamesOverTime(self.spaces, self.journal, lambda: self.labels)
        self._snapshotted = self.at.seq
        self.replayed, started, unanswered = 0, time.perf_counter(), self.journal.unanswered()
        for entry, at in self.journal.replay(self.at):
            self._replay(entry, at, unanswered)
            self.at = at
            self.replayed += entry.count
        self.replay_seconds = time.perf_counter() - started
        self._publish()
        self.faults += compare_arithmetic(self.journal, self.replayed)
        if ahead := [one.path.name for one in self.snapshots.all(AUTO, KEPT, DAMAGED) if one.entry > self.at.entry]:
            raise StateError(f"expected a journal up to {ahead[-1]}, got one that ends before it; restore a backup")
        self._fresh = True

    def _replay(self, entry: JournalEntry, at: Position, unanswered: Sequence[Receipt]) -> None:
        if entry.kind == RESET:
            self._begin(self.fresh())
        elif entry.kind == GROUP:
            self.writer = GroupNumbers.of_bytes(entry.payload).given_to(self.writer) or self.writer
        elif entry.kind in (RESTORE, EDIT):
            saved = self.snapshots.slot(RESTORED, at.entry)
            if not saved.path.is_file() or saved.digest != entry.payload:
                raise StateError(f"expected the state {saved.path.name} as it was, got another; restore a backup")
            self._go_on(entry.kind, self.resumed(checkpoint.load(saved.path)), at)
        else:
            first, verdicts = at.seq - entry.count, self.writer.observe(features_of(entry, self.labels)).structured()
            self.journal.answer(one.answered(first, verdicts) for one in unanswered if first <= one.first < at.seq)
            self.history.add(first, verdicts)

    def _begin(self, session: Session) -> None:
        self.history, self.writer = History(int(session.snapshot.tally.seen)), session
        self._publish()

    def _publish(self) -> None:
        """Let readers see what the writer has learned."""
        self.readers = self.writer.at(self.writer.snapshot)
