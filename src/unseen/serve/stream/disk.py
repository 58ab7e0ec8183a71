"""How much disk a stream takes, and will take: known before it is made, and bounded for each owner."""

from pathlib import Path

from unseen import LabelSpace
from unseen.errors import ServiceError
from unseen.serve.settings import Durability, Limits
from unseen.serve.stream.receipts import RECEIPT
from unseen.serve.stream.snapshots import AUTOS, STEPS


def folder_bytes(folder: Path) -> int:
    """The bytes of the files in a folder; one that is removed meanwhile takes none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def expected_bytes(labels: LabelSpace, state: int, durability: Durability) -> int:
    """The bytes that a stream may come to: its names, its automatic snapshots, and what the journal needs."""
    row = labels.dim * labels.id_anchors.element_size()
    space = (len(labels.names) + len(labels.negatives)) * row
    journal = (AUTOS * durability.every + durability.retain) * row + durability.receipts * RECEIPT
    states = AUTOS + 1 + (STEPS + 1 if durability.retain else 0)
    return space + states * state + journal


def check_quota(taken: int, more: int, limits: Limits) -> None:
    """Refuse what would take an owner over its share of the disk."""
    if taken + more > limits.disk_each:
        raise ServiceError(
            413,
            f"expected your streams to take at most {limits.disk_each:,} bytes of disk, got {taken:,} and "
            f"{more:,} more; delete snapshots or streams",
            "quota",
        )
