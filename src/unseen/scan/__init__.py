"""The numeric core: one recurrence (Eq. 7, 8, 12-14) behind one signature.

    scan(bank, teacher, z, step, *, kappa, tau) -> Scan

`teacher` holds logits whose softmax each teaching sample pulls the bank towards: the frozen text's, which the gate has
computed anyway, or the log of anyone's own soft targets; or `Anchors`, from which they are computed where they are
needed. `step == 0` reads and does not learn.
`naive` is the equations, one sample at a time; `blocked` gives the same numbers from a few matrix products per block;
`cuda` gives them on an NVIDIA GPU. The derivation is in README.md beside this file.

The device of the tensors chooses: `cuda` on a GPU, `blocked` anywhere else. `with using("blocked"):` or the environment
variable UNSEEN_SCAN name another; "cuda-or-blocked" falls back, with a warning, where the GPU cannot be used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unseen import odds
from unseen.errors import SettingError
from unseen.odds import Top
from unseen.scan import blocked, cuda, naive
from unseen.scan.base import Anchors, Scan, Targets, Teacher

__all__ = [
    "BACKENDS",
    "Anchors",
    "Scan",
    "Targets",
    "backend",
    "is_on_gpu",
    "read",
    "scan",
    "scan_many",
    "shared_targets",
    "two",
    "using",
]

AUTO, FALLBACK = "auto", "cuda-or-blocked"
ON_GPU: dict[str, cuda.Reads | None] = {  # how reads are multiplied
    "cuda": None,
    "cuda-float32": "float32",
    "cuda-split": "split",
    "cuda-tf32": "tf32",
}
BACKENDS = (AUTO, "naive", "blocked", *ON_GPU, FALLBACK)
_asked: ContextVar[str | None] = ContextVar("backend of the scan", default=None)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Let scans of this thread, inside the block, use a backend by name instead of the one for their device."""
    token = _asked.set(_known(name))
    try:
        yield
    finally:
        _asked.reset(token)


def backend(device: torch.device) -> str:
    """Return the name of the backend that tensors on this device get now."""
    name = _known(_asked.get() or os.environ.get("UNSEEN_SCAN") or AUTO)
    if name == AUTO:
        return "cuda" if device.type == "cuda" else "blocked"
    if name == FALLBACK:
        return _fallback(device)
    if name in ON_GPU and device.type != "cuda":
        raise SettingError(f"expected tensors on a CUDA device for the scan {name!r}, got {device}; use .to('cuda')")
    return name


def is_on_gpu(z: Tensor) -> bool:
    """Tell whether scans of these samples happen on a GPU, where whole streams go in one piece."""
    return z.is_cuda and backend(z.device) in ON_GPU


def scan(
    bank: Float[Tensor, "C d"],
    teacher: Teacher,
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    name = backend(z.device)
    if name in ON_GPU:
        return cuda.scan(bank, teacher, z, step, kappa=kappa, tau=tau, reads=ON_GPU[name])
    plain = naive.scan if name == "naive" else blocked.scan
    return plain(bank, _logits(teacher, z), z, step, kappa=kappa, tau=tau)


def two(first: Callable[[], Scan], second: Callable[[], Scan], device: torch.device) -> tuple[Scan, Scan]:
    """Return two scans that do not depend on each other; a GPU does them side by side."""
    return cuda.side_by_side(first, second, device) if backend(device) in ON_GPU else (first(), second())


def scan_many(
    bank: Float[Tensor, "S C d"] | Float[Tensor, "C d"],
    teacher: Teacher,
    z: Float[Tensor, "S T d"],
    step: Float[Tensor, "S T"],
    *,
    kappa: float,
    tau: float,
) -> Scan:
    """Return `scan` of S independent streams; a GPU does them all at once. Shorter streams end in zeros."""
    name, (streams, _, dim) = backend(z.device), z.shape
    if name in ON_GPU:
        return cuda.scan_many(bank, teacher, z, step, kappa=kappa, tau=tau, reads=ON_GPU[name])
    banks = bank.expand(streams, bank.shape[-2], dim)
    one_by_one = [scan(banks[i], _of_stream(teacher, i), z[i], step[i], kappa=kappa, tau=tau) for i in range(streams)]
    reads = (torch.stack(part) for part in zip(*(one.read for one in one_by_one), strict=True))
    return Scan(Top(*reads), torch.stack([one.bank for one in one_by_one]))


def read(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], *, tau: float) -> Top:
    """Return how rows that do not move read samples; a GPU never holds all their logits."""
    name = backend(z.device)
    if name in ON_GPU and len(z):
        return cuda.read(z, rows, tau=tau, reads=ON_GPU[name])
    return odds.top(odds.logits(z, rows, tau=tau))


def shared_targets(
    anchors: Anchors, z: Float[Tensor, "n d"], taught: Bool[Tensor, " n"], order: Int[Tensor, "S T"]
) -> Teacher:
    """Return the soft targets of the images that teach, once for all streams that are orders of the same images.

    Rows of `order` name images of `z`; one past the last names nothing. Where few images come twice, or the table would
    be large, the anchors come back: each stream then computes its own.
    """
    chosen = z[taught]
    size = len(chosen) * len(anchors.rows) * z.element_size()
    if order.numel() < 2 * len(z) or not 0 < size <= TABLE:
        return anchors
    place = pad((taught.cumsum(0) - 1).clamp(min=0), (0, 1))
    return Targets(_softmax(chosen, anchors), place[order])


TABLE = 8 << 30  # bytes of soft targets kept for all streams


def _softmax(z: Float[Tensor, "n d"], anchors: Anchors) -> Float[Tensor, "n C"]:
    if backend(z.device) in ON_GPU:
        return cuda.softmax(z, anchors)
    return torch.softmax(odds.logits(z, anchors.rows, tau=anchors.tau), dim=-1)


def _logits(teacher: Teacher, z: Float[Tensor, "T d"]) -> Float[Tensor, "T C"]:
    if isinstance(teacher, Anchors):
        return odds.logits(z, teacher.rows, tau=teacher.tau)
    return teacher.rows[teacher.at[0]].log() if isinstance(teacher, Targets) else teacher


def _of_stream(teacher: Teacher, i: int) -> Teacher:
    if isinstance(teacher, Targets):
        return Targets(teacher.rows, teacher.at[i : i + 1])
    return teacher if isinstance(teacher, Anchors) else teacher[i]


def _known(name: str) -> str:
    if name not in BACKENDS:
        raise SettingError(
            f"expected a scan out of {', '.join(BACKENDS)}, got {name!r}; leave it out for the device's own"
        )
    return name


@cache
def _fallback(device: torch.device) -> str:
    """Return "cuda" where it works; say once why it does not where it does not."""
    if device.type != "cuda":
        return "blocked"
    try:
        cuda.library(torch.cuda.get_device_capability(device))
    except SettingError as error:
        warnings.warn(f"the scan falls back to 'blocked' on {device}: {error}", RuntimeWarning, stacklevel=2)
        return "blocked"
    return "cuda"
