"""From what is on disk to a session: the newest sound snapshot, and the blocks of the journal after it."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, checkpoint
from unseen.errors import StateError
from unseen.serve.stream.journal import Journal, JournalEntry, Position
from unseen.serve.stream.snapshots import SnapshotFolder
from unseen.serve.stream.state_checks import arithmetic
from unseen.session import Session

log = logging.getLogger("unseen.serve")


def newest_state(
    snapshots: SnapshotFolder, resume: Callable[[checkpoint.Checkpoint], Session], faults: list[str]
) -> tuple[Session, Position] | None:
    """The session of the newest sound snapshot and its place in the journal; others are set aside as faults."""
    for saved in reversed(snapshots.all()):
        try:
            found = checkpoint.load(saved.path)
            at = _position(found.identity, saved.entry)
            return resume(found), at
        except OSError:  # of the disk or of file handles; says nothing about the snapshot
            raise
        except Exception as error:  # an altered file may lead anywhere
            log.error("snapshot %s set aside: %s", saved.path.name, error)
            why = str(error).replace(f"{saved.path.parent}/", "")  # the stream's owner reads it
            faults.append(f"{saved.path.name} was set aside: {why}")
            snapshots.set_aside(saved)
    return None


def _position(identity: dict[str, Any], entry: int) -> Position:
    number, seq, chain = identity.get("position", (-1, -1, ""))
    if number != entry:
        raise StateError(f"expected a snapshot of entry {entry}, got one of {number}; restore a copy")
    return Position(number, seq, chain)


def compare_arithmetic(journal: Journal, replayed: int) -> list[str]:
    """A fault when a replay could not give the bits that were learned; from here on, note what computes."""
    then, now = journal.note("arithmetic"), arithmetic()
    if then == now:
        return []
    journal.set_note("arithmetic", now)
    if not then or not replayed:
        return []
    return [f"{replayed} samples were learned with {then} and replayed with {now}: equal to rounding"]


def features_of(entry: JournalEntry, labels: LabelSpace) -> Float[Tensor, "n d"]:
    """The samples of a block."""
    flat = torch.frombuffer(bytearray(entry.payload), dtype=labels.id_anchors.dtype)
    # cloned, because torch aligns its own memory, and norms and products round by alignment
    return flat.view(entry.count, labels.dim).clone()
