"""One stream: a session that one writer teaches, a journal of everything it was taught, and snapshots."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import torch

from unseen import LabelSpace, checkpoint
from unseen.errors import ServiceError, StateError
from unseen.serve.settings import INSIDE, Durability
from unseen.serve.stream import journal as journal_
from unseen.serve.stream import states
from unseen.serve.stream.batch import BatchVerdicts, SampleBatch, joined, split_by_batch
from unseen.serve.stream.disk import disk_is_full
from unseen.serve.stream.folder import StreamConfig
from unseen.serve.stream.history import History, RecentItems
from unseen.serve.stream.journal import Journal, JournalEntry, Position, Receipt, Retention
from unseen.serve.stream.kept import GroupNumbers
from unseen.session import Session

log = logging.getLogger("unseen.serve")


class Stream:
    """One writer at a time behind a lock; readers use the last state whose block is on disk."""

    writer: Session
    readers: Session

    def __init__(self, folder: Path, config: StreamConfig, durability: Durability) -> None:
        self.folder, self.config, self.durability = folder, config, durability
        self.spaces = states.SpaceFolder(folder)
        self.snapshots = states.SnapshotFolder(folder / "snapshots", durability.kept)
        self.faults: list[str] = []
        self.snapshot_queued = False
        self.on_commit: Callable[[float], object] = lambda seconds: None
        self.replay_seconds = 0.0  # that a restart would take for what no snapshot covers
        self.lock = threading.Lock()
        self._saving = threading.Lock()
        self.grouping = threading.Lock()  # held while samples are grouped: two at once would give a number twice
        self._retention: Retention | None = None
        self._closed = False
        self._answers: RecentItems[BatchVerdicts]
        self.start = self.at = Position.start(f"{config.id} {self.spaces.first.fingerprint}")
        self._recover()

    @property
    def labels(self) -> LabelSpace:
        """The label space of the state that readers see."""
        return self.readers.detector.labels

    def published(self) -> tuple[Session, Position]:
        """What readers see, and its place in the journal."""
        with self.lock:
            return self.readers, self.at

    def score(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
        """Verdicts for a block without learning anything."""
        z, session = joined(batches), self.readers
        return split_by_batch(BatchVerdicts.of(-1, session.score(z)), batches)

    def observe(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
        """Learn from a block, wait until it is on disk, then let readers see it and answer."""
        with self.changing():
            new = [batch for batch in batches if self._receipt(batch) is None]
            fresh = list({batch.idempotency or id(batch): batch for batch in new[::-1]}.values())[::-1]  # once each
            learned = dict(zip(map(id, fresh), self._learn(fresh), strict=True)) if fresh else {}
            return [learned.get(id(batch)) or self._repeated(batch) for batch in batches]

    def reset(self) -> None:
        """Forget everything learned; sequence numbers go on."""
        with self.changing():
            self.append(JournalEntry("reset", 0, b""))
            self._begin(self.config.fresh(self.labels))

    def snapshot(self, kind: states.Kind = "kept") -> states.SavedSnapshot:
        """Write the state readers see to a file of its own, while the writer goes on."""
        with self._saving:
            covered = self.replay_seconds
            session, at = self.published()
            self._refuse_closed()
            saved = self.snapshots.slot(kind, at.entry)
            session.save(saved.path, with_space=False, position=list(at))
            oldest = self.snapshots.tidy()
            if kind == "auto":
                self.snapshotted = at.seq
                with self.lock:
                    self.replay_seconds -= covered
                keep = self.durability
                self._retention = Retention(oldest, at.seq - keep.retain, keep.receipts) if oldest else None
            return saved

    def export(self, path: Path) -> Position:
        """Write the state readers see to `path`, and return its place in the journal."""
        session, at = self.published()
        session.save(path, with_space=False, position=list(at))
        return at

    def resumed(self, found: checkpoint.Checkpoint) -> Session:
        """A session that goes on from a state over any label space that the stream has had."""
        labels = self.spaces.find(str(found.identity.get("labels"))) or self.labels
        return self.config.fresh(labels).resumed(found)

    def restore(self, number: int) -> None:
        """Go back to a snapshot, by the number of the entry that it covers."""
        session = self.resumed(checkpoint.load(self.snapshots.find(number).path))
        with self.changing():
            self.take_over("restore", session)
        self.cover_restores()

    def take_over(self, kind: journal_.Kind, session: Session) -> None:
        """Go on from another session, once its label space, its state and a journal entry are on disk."""
        self.spaces.add(session.detector.labels)
        saved = self.snapshots.slot("restored", self.at.entry + 1)
        session.save(saved.path, with_space=False, position=list(self.at))
        self.append(JournalEntry(kind, 0, saved.digest))
        self._go_on(kind, session)

    def cover_restores(self) -> None:
        """Take a snapshot where several states of restores and edits are on disk, which it makes needless."""
        if len(self.snapshots.all("restored")) > INSIDE.autos:
            self.snapshot("auto")
        with self.lock:
            needed = {saved.labels for saved in self.snapshots.all("auto", "kept", "restored", "before")}
            self.spaces.drop(but=needed | {self.labels.fingerprint})

    def number_groups(self, numbers: GroupNumbers) -> None:
        """Keep the numbers that groups were given, in the journal too; while the stream is being changed."""
        if numbered := numbers.given_to(self.writer):
            self.append(JournalEntry("group", 0, numbers.to_bytes()))
            self.writer = numbered
            self.readers = self.writer.at()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the one writer; after a failed write, go back to what is on disk first, whatever that is."""
        with self.lock:
            self._refuse_closed()
            if not self._fresh:
                self.journal.close()
                self._recover()
            yield

    def append(self, entry: JournalEntry, receipts: Sequence[Receipt] = ()) -> None:
        """Write an entry to the journal and wait for the disk."""
        self._fresh, started = False, time.perf_counter()  # until it is confirmed, what is on disk is not known
        try:
            self.at = self.journal.append(self.at, entry, receipts, retention=self._retention)
        except (sqlite3.Error, OSError) as error:
            raise disk_is_full(error) from error
        self._retention, self._fresh = None, True
        self.on_commit(time.perf_counter() - started)

    def close(self) -> None:
        """Take a last snapshot, so that the next start replays nothing, and close the files."""
        if self.at.seq > self.snapshotted:
            try:
                self.snapshot("auto")
            except OSError as error:  # the journal has it all
                log.warning("no snapshot of %s at the end: %s", self.config.id, error)
        self.abandon()

    def abandon(self) -> None:
        """Close the files without a snapshot; callers that still wait for the writer are refused.

        A snapshot that is being written is waited for: after the folder is gone it would make it again.
        """
        with self._saving, self.lock:
            self.journal.close()
            self._closed = True

    def _receipt(self, batch: SampleBatch) -> Receipt | None:
        """What is kept of a batch with an idempotency key that was learned before."""
        found = self.journal.receipts("key =", batch.idempotency) if batch.idempotency is not None else ()
        return found[0] if found else None

    def _repeated(self, batch: SampleBatch) -> BatchVerdicts | Exception:
        """The verdicts on a batch that was learned before; where they are no longer kept, those of now."""
        found = self._receipt(batch)
        assert found is not None
        if found.digest != batch.digest:
            what = "expected the features this idempotency key came with first, got others; use a new key"
            return ServiceError(422, what, "key_reused")
        kept = self._answers.get(found.key)
        if kept is None:
            z = joined([batch])
            kept = BatchVerdicts.of(found.first, self.writer.score(z))
        return replace(kept, repeated=True)

    def _learn(self, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
        """Learn from a block while it is written to disk; both are waited for."""
        z, first, started = joined(batches), self.at.seq, time.perf_counter()
        numbered = zip(batches, accumulate(map(len, batches), initial=first), strict=False)
        keyed = ((batch, seq) for batch, seq in numbered if batch.idempotency is not None)
        receipts = [Receipt(batch.idempotency or b"", batch.digest, seq, len(batch)) for batch, seq in keyed]
        before, entry = self.at, JournalEntry("observe", len(z), z.numpy().tobytes())
        appended = journal_.DISK.submit(self.append, entry, receipts)  # a disk takes as long as a sample
        try:
            block = BatchVerdicts.of(first, self.writer.observe(z))
            self.replay_seconds += time.perf_counter() - started
        except BaseException:
            if appended.exception() is None:  # what cannot be computed is taken back
                self._fresh = False
                with suppress(sqlite3.Error, OSError):  # then the next caller finds out
                    self.journal.take_back(before)
                    self.at = before
            raise
        appended.result()
        self._remember(block, receipts)
        self.readers = self.writer.at()
        return split_by_batch(block, batches)

    def _remember(self, block: BatchVerdicts, receipts: Sequence[Receipt]) -> None:
        self.history.add(block)
        for one in receipts:
            self._answers.add({one.key: block.part(one.first, one.count)})

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ServiceError(404, "expected a stream, got one that was deleted; create another")

    def _recover(self) -> None:
        """From what is on disk to a session: the newest sound snapshot, and the journal's entries after it."""
        self.journal = Journal(self.folder / "journal.db", self.start)
        if self.journal.lost_tip:
            self.faults.append(f"{journal_.TIP} was removed: blocks that were acknowledged may be missing")
        found = self.snapshots.newest(self.resumed, self.faults)
        if not found and self.faults and not self.journal.is_whole:
            raise StateError(self.faults[-1])
        session, self.at = found or (self.config.fresh(self.spaces.first), self.start)
        self._answers = RecentItems(1024, 8192)  # as many samples
        self._begin(session)
        self.snapshotted = self.at.seq
        started, receipts = time.perf_counter(), deque(self.journal.receipts("first >=", self.at.seq))
        for entry, at in self.journal.replay(self.at):
            own = []
            while receipts and receipts[0].first < at.seq:
                own.append(receipts.popleft())
            self._replay(entry, at, own)
            self.at = at
        self.replayed, self.replay_seconds = self.at.seq - self.snapshotted, time.perf_counter() - started
        self.readers = self.writer.at()
        self._compare_arithmetic()
        if ahead := [
            one.path.name for one in self.snapshots.all("auto", "kept", "damaged") if one.entry > self.at.entry
        ]:
            raise StateError(f"expected a journal up to {ahead[-1]}, got one that ends before it; restore a backup")
        self._fresh = True

    def _replay(self, entry: JournalEntry, at: Position, receipts: Sequence[Receipt]) -> None:
        if entry.kind == "reset":
            self._begin(self.config.fresh(self.labels))
        elif entry.kind == "group":
            self.writer = GroupNumbers.of_bytes(entry.payload).given_to(self.writer) or self.writer
        elif entry.kind in ("restore", "edit"):
            saved = self.snapshots.slot("restored", at.entry)
            if not saved.path.is_file() or saved.digest != entry.payload:
                raise StateError(f"expected the state {saved.path.name} as it was, got another; restore a backup")
            self._go_on(entry.kind, self.resumed(checkpoint.load(saved.path)))
        else:
            flat = torch.frombuffer(bytearray(entry.payload), dtype=self.labels.id_anchors.dtype)
            # cloned, because torch aligns its own memory, and norms and products round by alignment
            z = flat.view(entry.count, self.labels.dim).clone()
            self._remember(BatchVerdicts.of(self.at.seq, self.writer.observe(z)), receipts)

    def _compare_arithmetic(self) -> None:
        """Note what computes, and a fault where a replay could not give the bits that were learned."""
        then, now = self.journal.note("arithmetic"), states.arithmetic()
        if then != now:
            self.journal.set_note("arithmetic", now)
            if then and self.replayed:
                what = f"{self.replayed} samples were learned with {then} and replayed with {now}"
                self.faults.append(f"{what}: equal to rounding")

    def _go_on(self, kind: str, session: Session) -> None:
        """Let a session take the place of the writer's, after the journal entry that says so."""
        if kind == "restore":
            self._begin(session)
        else:
            self.writer = session
            self.readers = self.writer.at()

    def _begin(self, session: Session) -> None:
        self.history, self.writer = History(int(session.snapshot.tally.seen)), session
        self.readers = self.writer.at()
