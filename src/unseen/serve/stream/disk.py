"""What streams take of disk and memory, and which failures of a disk pass by themselves."""

from __future__ import annotations

import errno
import json
import sqlite3
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.detectors.state import flatten
from unseen.errors import ServiceError, UnseenError
from unseen.serve.settings import Limits
from unseen.serve.stream.folder import UNFIT, StreamConfig
from unseen.session import Session

DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS})
PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


def is_transient(error: sqlite3.Error) -> bool:
    """Whether SQLite failed for want of room or by the disk, which says nothing about the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING


def disk_is_full(error: object) -> ServiceError:
    """The error for a full or failing disk."""
    why = getattr(error, "strerror", None) or error  # without the path, which is nobody's business
    return ServiceError(507, f"expected room and a sound disk, got {why}; nothing was learned, try again")


def check_names(labels: LabelSpace, limits: Limits) -> None:
    """Refuse a label space of too many names or too long ones, however it came: answers repeat them."""
    for what, names, most in (("names", labels.names, limits.names), ("negatives", labels.negatives, limits.negatives)):
        if len(names) > most:
            raise ServiceError(413, f"expected at most {most:,} {what}, got {len(names):,}; leave some out", "names")
        if (longest := max(map(len, names), default=0)) > limits.name:
            raise ServiceError(
                413, f"expected {what} of at most {limits.name} characters, got {longest:,}; shorten them", "names"
            )


def session_bytes(session: Session) -> int:
    """The bytes of everything a session has learned, and of the images that it may keep."""
    tensors = [tensor for state in session.snapshot for tensor in flatten(state).values()]
    return session.reservoir.byte_limit + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Probe(NamedTuple):
    """The small label spaces that a state is measured on: from 16 names on, sizes grow linearly with them."""

    widths: tuple[int, int, int] = (8, 16, 24)
    few: int = 20
    sides: tuple[tuple[int, int], ...] = ((20, 20), (21, 20), (20, 21))


PROBE = Probe()


def state_bytes(config: StreamConfig, labels: LabelSpace) -> int:
    """The bytes that the state of a stream will take.

    They grow linearly with the names of each side and at most with the square of the width, so nine small label spaces
    give the size for a large one.
    """
    try:
        sizes = _sizes(config.recipe, labels.id_anchors.dtype)
    except (UnseenError, *UNFIT):
        return 0  # settings that do not work at all, which `StreamConfig.check` says better
    known, negative = len(labels.names) - PROBE.few, len(labels.negatives) - PROBE.few
    base, more_known, more_negative = (
        _at_width([sizes[side, dim] for dim in PROBE.widths], labels.dim) for side in PROBE.sides
    )
    return int(base + known * (more_known - base) + negative * (more_negative - base))


@lru_cache(64)
def _sizes(recipe: str, dtype: torch.dtype) -> dict[tuple[tuple[int, int], int], int]:
    """The bytes of the states of small label spaces, by names of each side and width."""
    config = StreamConfig("", "", "", *json.loads(recipe))
    return {(side, dim): _measured(config, *side, dim, dtype) for side, dim in product(PROBE.sides, PROBE.widths)}


def _measured(config: StreamConfig, known: int, negative: int, dim: int, dtype: torch.dtype) -> int:
    generator = torch.Generator().manual_seed(0)
    anchors = normalize(torch.randn(known + negative, dim, generator=generator, dtype=torch.float64), dim=-1).to(dtype)
    names = [f"name {number}" for number in range(known + negative)]
    space = LabelSpace(tuple(names[:known]), tuple(names[known:]), anchors[:known], anchors[known:])
    session = config.spec(space).build()
    session.observe(anchors[:1])
    return session_bytes(session)


def _at_width(sizes: list[int], dim: int) -> float:
    """The parabola through the sizes at three widths, at another width."""
    a, b, c = PROBE.widths
    left, middle, right = (float(size) for size in sizes)
    slope, bend = (middle - left) / (b - a), (right - middle) / (c - b)
    return left + (dim - a) * (slope + (dim - b) * (bend - slope) / (c - a))
