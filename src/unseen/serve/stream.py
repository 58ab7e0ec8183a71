"""One stream: a session that one writer teaches, a journal that knows everything it was taught, and snapshots."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, Session, SessionSpec, checkpoint, detectors
from unseen.detectors.base import UNIT_TOLERANCE, unit
from unseen.errors import FeatureError, ServiceError, SettingError, StateError, UnseenError
from unseen.serve.history import History
from unseen.serve.journal import OBSERVE, RESET, RESTORE, Entry, Forget, Journal, Position, Receipt, Volatile
from unseen.session import Snapshot
from unseen.storage.files import replacing
from unseen.verdicts import VERDICT_DTYPE, VerdictArray

AUTO, KEPT, RESTORED, DAMAGED = "auto", "kept", "restored", "damaged"
AUTOS = 2  # automatic snapshots on disk: the older one serves when the newer one is damaged

log = logging.getLogger("unseen.serve")


@dataclass(frozen=True)
class Durability:
    """How often a stream is snapshotted, and how much is remembered beyond what a restart needs."""

    every: int = 20_000  # samples between two automatic snapshots
    retain: int = 0  # samples that stay in the journal although a snapshot covers them
    receipts: int = 100_000  # idempotency keys remembered
    kept: int = 20  # snapshots taken by hand
    volatile: bool = False  # keep nothing on disk but the label space: for benchmarks and trials


@dataclass(frozen=True)
class Config:
    """What a stream is, fixed for its life."""

    id: str
    name: str
    owner: str
    detector: str
    settings: dict[str, Any] = field(default_factory=dict)
    threshold: str = "adaptive"
    threshold_settings: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def session(self, labels: LabelSpace) -> Session:
        """Return a session at its start."""
        return SessionSpec(labels, self.detector, self.settings, self.threshold, self.threshold_settings).build()

    def check(self, labels: LabelSpace) -> None:
        """Refuse settings that a service cannot work with, or that do not survive one sample."""
        if self.detector in detectors.REGISTRY and detectors.REGISTRY[self.detector].needs_patches:
            raise SettingError(
                f"expected a detector of whole-image vectors, got {self.detector!r}, which needs patches; "
                "choose another for a service"
            )
        try:
            self.session(labels).observe(labels.id_anchors[:1])
        except UnseenError:
            raise
        except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            raise SettingError(f"expected settings that fit {self.detector!r}, got {error}; see its class") from error


@dataclass(frozen=True)
class Part:
    """What one caller brings: checked unit features and, perhaps, a key that makes a retry harmless."""

    z: Float[Tensor, "n d"]
    key: bytes | None = None
    asked: bytes = b""  # hash of what was sent, where there is a key
    pictures: Sequence[bytes] = ()

    def __len__(self) -> int:
        return self.z.shape[0]  # many times faster than len of a tensor


class Answer(NamedTuple):
    """Verdicts of consecutive samples, numbered from `first`; `repeated` when a retry is told what was said before."""

    first: int
    records: VerdictArray
    repeated: bool = False


class Saved(NamedTuple):
    """A snapshot on disk, named by the entry it stands on."""

    kind: str
    entry: int
    path: Path


class Stream:
    """One writer at a time behind a lock; readers use the last state whose block is on disk."""

    def __init__(self, folder: Path, config: Config, durability: Durability) -> None:
        self.folder, self.config, self.durability = folder, config, durability
        self.labels = LabelSpace.load(folder / "space.safetensors")
        self.faults: list[str] = []
        self.queued = False  # for a snapshot
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._forget: Forget | None = None
        self._left = False
        self.start = self.at = Position.start(f"{config.id} {self.labels.fingerprint}")
        self._recover()

    def part(
        self, features: Tensor, key: str | None = None, *, asked: bytes = b"", pictures: Sequence[bytes] = ()
    ) -> Part:
        """Return features as the writer takes them; refuse what no detector could use.

        `asked` is a hash of what was sent, where that is not the features themselves.
        """
        if features.ndim != 2 or features.shape[1] != self.labels.dim or not len(features):
            raise FeatureError(
                f"expected features of shape [n, {self.labels.dim}] for this label space, got {list(features.shape)}; "
                "pass a batch of at least one vector from the same encoder"
            )
        z = features.detach().to(self.labels.id_anchors.dtype)
        if key is None:
            return Part(_nearly_unit(z, self.labels.id_anchors), pictures=pictures)
        hashed = hashlib.blake2b(key.encode(), digest_size=16).digest()
        asked = asked or hashlib.blake2b(_raw(z), digest_size=16).digest()
        return Part(_nearly_unit(z, self.labels.id_anchors), hashed, asked, pictures)

    def score(self, parts: Sequence[Part]) -> list[Answer | Exception]:
        """Return verdicts for a block without learning anything."""
        verdicts = self.readers.score(torch.cat([part.z for part in parts])).structured()
        return [Answer(-1, own) for own in _split(verdicts, parts)]

    def observe(self, parts: Sequence[Part]) -> list[Answer | Exception]:
        """Learn from a block, wait until it is on disk, then let readers see it and answer."""
        with self._lock:
            self._refresh()
            known = [self._known(part) for part in parts]
            fresh = _first_of_each_key([part for part, answer in zip(parts, known, strict=True) if answer is None])
            learned = dict(zip(map(id, fresh), self._learn(fresh), strict=True)) if fresh else {}
            # a key that came twice in one block is answered from the receipt of the first
            return [
                old or learned.get(id(part)) or self._known(part) or _lost()
                for part, old in zip(parts, known, strict=True)
            ]

    def reset(self) -> None:
        """Forget everything learned; sequence numbers go on."""
        with self._lock:
            self._refresh()
            self._append(Entry(RESET, 0, b""))
            self._begin(self._start())

    def snapshot(self, kind: str = KEPT) -> Saved:
        """Write the state readers see to a file of its own, while the writer goes on."""
        with self._saving:
            if kind == KEPT and len(self.saved(KEPT)) >= self.durability.kept:
                raise ServiceError(
                    409, f"expected at most {self.durability.kept} snapshots, got one more; delete one first"
                )
            with self._lock:
                state, at = self.readers.snapshot, self.at
            path = self._path(kind, at.entry)
            self._save(path, state, at)
            if kind == AUTO:
                self._rotate(at)
            return Saved(kind, at.entry, path)

    def restore(self, source: Path) -> None:
        """Take over the state in a file as one more thing that happened to this stream."""
        state, _ = self._load(source)
        with self._lock:
            self._refresh()
            path = self._path(RESTORED, self.at.entry + 1)
            self._save(path, state, self.at)
            self._append(Entry(RESTORE, 0, _file_hash(path)))
            self._begin(state)

    def drop(self, entry: int) -> None:
        """Delete a snapshot taken by hand."""
        self.find(entry, KEPT).path.unlink()

    def find(self, entry: int, *kinds: str) -> Saved:
        """Return the snapshot that stands on an entry."""
        for saved in self.saved(*kinds):
            if saved.entry == entry:
                return saved
        raise ServiceError(404, f"expected a snapshot of this stream, got {entry}; list them first")

    def saved(self, *kinds: str) -> list[Saved]:
        """Return the snapshots on disk, oldest first."""
        found = []
        for path in (self.folder / "snapshots").glob("[!.]*.safetensors"):
            kind, _, entry = path.stem.partition("-")
            if kind in (kinds or (AUTO, KEPT)):
                found.append(Saved(kind, int(entry), path))
        return sorted(found, key=lambda saved: saved.entry)

    def export(self, path: Path) -> Position:
        """Write the state readers see to `path`, and return where in the stream it stands."""
        with self._lock:
            state, at = self.readers.snapshot, self.at
        self._save(path, state, at)
        return at

    @property
    def due(self) -> bool:
        """Say whether an automatic snapshot should be taken."""
        return not self.durability.volatile and self.at.seq - self._snapshotted >= self.durability.every

    def moved(self) -> dict[str, float]:
        """Return for each bank how far its rows have moved from the frozen text on average."""
        state, start = self.readers.snapshot.detector, self._start().detector
        if state is None:
            return {}
        pairs = {name: (bank, getattr(start, name)) for name, bank in state._asdict().items() if bank.ndim == 2}
        return {
            name: float(torch.linalg.vector_norm(bank - anchors, dim=1).mean())
            for name, (bank, anchors) in pairs.items()
            if bank.shape == anchors.shape and bank.shape[1] == self.labels.dim and len(bank)
        }

    def close(self) -> None:
        """Take a last snapshot, so that the next start replays nothing, and let go of the files."""
        if not self.durability.volatile and self.at.seq > self._snapshotted:
            try:
                self.snapshot(AUTO)
            except OSError as error:  # the journal has it all
                log.warning("no snapshot of %s at the end: %s", self.config.id, error)
        self.leave()

    def leave(self) -> None:
        """Let go of the files; whoever still waits for the writer is refused."""
        with self._lock:
            self.journal.close()
            self._left = True

    def _known(self, part: Part) -> Answer | Exception | None:
        found = None if part.key is None else self.journal.receipt(part.key)
        if found is None:
            return None
        if found.asked != part.asked:
            return ServiceError(
                422, "expected the features this idempotency key came with first, got others; use a new key"
            )
        return Answer(found.first, np.frombuffer(found.answer, VERDICT_DTYPE), repeated=True)

    def _learn(self, parts: Sequence[Part]) -> list[Answer]:
        z, first = torch.cat([part.z for part in parts]), self.at.seq
        records = self.writer.observe(z).structured()
        answers: list[Answer] = []
        receipts = []
        for part, own in zip(parts, _split(records, parts), strict=True):
            answers.append(Answer(first, own))
            if part.key is not None:
                receipts.append(Receipt(part.key, part.asked, first, own.tobytes()))
            first += len(own)
        self._append(Entry(OBSERVE, len(z), _raw(z)), receipts)
        self.history.add(self.at.seq - len(z), records)
        self.readers = self.writer.at(self.writer.snapshot)
        return answers

    def _append(self, entry: Entry, receipts: Sequence[Receipt] = ()) -> None:
        self._fresh = False  # until the disk has said yes, nobody knows what is on it
        try:
            self.at = self.journal.append(self.at, entry, receipts, forget=self._forget)
        except (sqlite3.Error, OSError) as error:
            raise ServiceError(
                507, f"expected room and a sound disk for the journal, got {error}; nothing was learned, try again"
            ) from error
        self._forget, self._fresh = None, True

    def _refresh(self) -> None:
        """After a failed write, go back to what is on disk, whatever that is."""
        if self._left:
            raise ServiceError(404, "expected a stream, got one that was deleted; create another")
        if not self._fresh:
            self.journal.close()
            self._recover()

    def _recover(self) -> None:
        (self.folder / "snapshots").mkdir(exist_ok=True)
        path = self.folder / "journal.db"
        self.journal = Volatile(self.start) if self.durability.volatile else Journal(path, self.start)
        self._begin(self._start())
        self.at = self._from_snapshot() or self.start
        self._snapshotted = self.at.seq
        self.replayed = 0
        for entry, at in self.journal.replay(self.at):
            self._again(entry, at)
            self.at = at
            self.replayed += entry.count
        self.readers = self.writer.at(self.writer.snapshot)
        self._compare_arithmetic()
        if ahead := [saved.path.name for saved in self.saved(AUTO, KEPT, DAMAGED) if saved.entry > self.at.entry]:
            raise StateError(
                f"expected a journal up to the snapshot {ahead[-1]}, got one that ends before it; restore a backup"
            )
        self._fresh = True

    def _compare_arithmetic(self) -> None:
        """Say so when a replay could not give the bits that were learned; from here on, note what computes."""
        then, now = self.journal.note("arithmetic"), _arithmetic()
        if then == now:
            return
        if then and self.replayed:
            self.faults.append(
                f"{self.replayed} samples were learned with {then} and replayed with {now}: equal to rounding"
            )
        self.journal.put_note("arithmetic", now)

    def _from_snapshot(self) -> Position | None:
        for _, entry, path in reversed(self.saved()):
            try:
                state, identity = self._load(path)
                at = _position(identity, entry)
            except StateError as error:
                log.error("snapshot set aside: %s", error)
                self.faults.append(str(error))
                path.rename(path.with_name(f"{DAMAGED}-{entry:012d}.safetensors"))
            else:
                self._begin(state)
                return at
        return None

    def _again(self, entry: Entry, at: Position) -> None:
        if entry.kind == RESET:
            self._begin(self._start())
        elif entry.kind == RESTORE:
            path = self._path(RESTORED, at.entry)
            if not path.is_file() or _file_hash(path) != entry.payload:
                raise StateError(f"expected the restored state {path.name} as it was, got another; restore a backup")
            self._begin(self._load(path)[0])
        else:
            records = self.writer.observe(self._features(entry)).structured()
            self.history.add(at.seq - entry.count, records)

    def _features(self, entry: Entry) -> Tensor:
        flat = torch.frombuffer(bytearray(entry.payload), dtype=self.labels.id_anchors.dtype)
        # cloned, because torch aligns its own memory, and norms and products round by alignment
        return flat.view(entry.count, self.labels.dim).clone()

    def _start(self) -> Snapshot:
        return self.config.session(self.labels).snapshot

    def _begin(self, state: Snapshot) -> None:
        self.history = History()
        self.writer, self.readers = (self.config.session(self.labels).at(state) for _ in range(2))

    def _load(self, path: Path) -> tuple[Snapshot, dict[str, Any]]:
        found = checkpoint.load(path)
        return self.config.session(self.labels).resumed(found).snapshot, found.identity

    def _save(self, path: Path, state: Snapshot, at: Position) -> None:
        checkpoint.save(path, state._asdict(), {**self.readers.identity, "position": list(at)})

    def _rotate(self, at: Position) -> None:
        autos = self.saved(AUTO)
        for old in autos[:-AUTOS]:
            old.path.unlink()
        self._snapshotted = at.seq
        if len(autos) < AUTOS:
            return
        oldest = autos[-AUTOS].entry
        for restored in self.saved(RESTORED):
            if restored.entry < oldest:
                restored.path.unlink()
        self._forget = Forget(oldest, at.seq - self.durability.retain, self.durability.receipts)

    def _path(self, kind: str, entry: int) -> Path:
        return self.folder / "snapshots" / f"{kind}-{entry:012d}.safetensors"


def write_config(folder: Path, config: Config) -> None:
    """Write what a stream is, with a checksum."""
    body = json.dumps(asdict(config), sort_keys=True)
    with replacing(folder / "stream.json") as path:
        path.write_text(json.dumps({"stream": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}))


def read_config(folder: Path) -> Config:
    """Return what a stream is; refuse an altered file."""
    try:
        file = json.loads((folder / "stream.json").read_text())
        if hashlib.sha256(file["stream"].encode()).hexdigest() != file["sha256"]:
            raise ValueError("checksum differs")
        return Config(**json.loads(file["stream"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"expected a whole stream.json, got a damaged one ({error}); restore a backup") from error


def _position(identity: dict[str, Any], entry: int) -> Position:
    number, seq, chain = identity.get("position", (-1, -1, ""))
    if number != entry:
        raise StateError(f"expected a snapshot of entry {entry}, got one of {number}; restore a copy")
    return Position(number, seq, chain)


def _split(records: VerdictArray, parts: Sequence[Part]) -> list[VerdictArray]:
    return np.split(records, np.cumsum([len(part) for part in parts])[:-1])


def _first_of_each_key(parts: Sequence[Part]) -> list[Part]:
    seen: set[bytes] = set()
    first = []
    for part in parts:
        if part.key is None or part.key not in seen:
            first.append(part)
        if part.key is not None:
            seen.add(part.key)
    return first


def _lost() -> ServiceError:
    return ServiceError(409, "expected an idempotency key used once at a time, got it twice at once; try again")


def _raw(z: Tensor) -> bytes:
    return z.contiguous().cpu().numpy().tobytes()


def _file_hash(path: Path) -> bytes:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


def _nearly_unit(z: Float[Tensor, "n d"], like: Tensor) -> Float[Tensor, "n d"]:
    """Return features that every detector takes: those well within its bounds as they came, others made unit."""
    numbers = z.numpy()
    squares = np.einsum("nd,nd->n", numbers, numbers)
    if bool((np.abs(squares - 1) < UNIT_TOLERANCE).all()):  # of squares: half as far as is allowed of norms
        return z
    return unit(z, like=like)


def _arithmetic() -> str:
    cores = torch.get_num_threads()
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {cores} compute thread(s)"
