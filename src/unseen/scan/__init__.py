"""The numeric core: one recurrence (Eq. 7, 8, 12-14) behind one signature.

    scan(bank, targets, z, step, *, kappa, tau) -> Scan

A sample with `step > 0` is a teacher: it pulls the bank towards its soft targets. `targets` holds logits whose softmax
they are: the frozen text's, which the gate has computed anyway, or the log of the caller's own soft targets; or
`Anchors`, from which they are computed where they are needed. `step == 0` reads and does not learn.
`naive` is the equations, one sample at a time; `blocked` gives the same numbers from a few matrix products per block;
`cuda` gives them on an NVIDIA GPU. The derivation is in README.md beside this file.

The device of the tensors chooses: `cuda` on a GPU, `blocked` anywhere else; the environment variable UNSEEN_SCAN names
another.
"""

import os
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unseen import odds
from unseen.errors import SettingError, check_choice
from unseen.odds import Top
from unseen.scan import blocked, naive
from unseen.scan.base import Anchors, Scan, SharedTargets, TargetSource
from unseen.scan.cuda import scan as cuda_scan

CUDA = "cuda"
BACKENDS = ("naive", "blocked", CUDA)


def backend(device: torch.device) -> str:
    """The name of the backend that tensors on this device get now."""
    name = os.environ.get("UNSEEN_SCAN") or (CUDA if device.type == "cuda" else "blocked")
    check_choice("a scan", name, BACKENDS)
    if name == CUDA and device.type != "cuda":
        raise SettingError(f"expected tensors on a CUDA device for the scan {name!r}, got {device}; use .to('cuda')")
    return name


def is_on_gpu(z: Tensor) -> bool:
    """Whether scans of these samples happen on a GPU, where whole streams go in one piece."""
    return z.is_cuda and backend(z.device) == CUDA


def scan(
    bank: Float[Tensor, "C d"],
    targets: TargetSource,
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    name = backend(z.device)
    if name == CUDA:
        return cuda_scan.scan(bank, targets, z, step, kappa=kappa, tau=tau)
    plain = naive.scan if name == "naive" else blocked.scan
    return plain(bank, _logits(targets, z), z, step, kappa=kappa, tau=tau)


def run_both(first: Callable[[], Scan], second: Callable[[], Scan], device: torch.device) -> tuple[Scan, Scan]:
    """Two scans that do not depend on each other; a GPU does them side by side."""
    return cuda_scan.run_both(first, second, device) if backend(device) == CUDA else (first(), second())


def scan_many(
    bank: Float[Tensor, "S C d"] | Float[Tensor, "C d"],
    targets: TargetSource,
    z: Float[Tensor, "S T d"],
    step: Float[Tensor, "S T"],
    *,
    kappa: float,
    tau: float,
) -> Scan:
    """`scan` of S independent streams; a GPU does them all at once. Shorter streams end in zeros."""
    streams, _, dim = z.shape
    if backend(z.device) == CUDA:
        return cuda_scan.scan_many(bank, targets, z, step, kappa=kappa, tau=tau)
    banks = bank.expand(streams, bank.shape[-2], dim)
    scans = [scan(banks[i], _of_stream(targets, i), z[i], step[i], kappa=kappa, tau=tau) for i in range(streams)]
    reads = (torch.stack(part) for part in zip(*(one.read for one in scans), strict=True))
    return Scan(Top(*reads), torch.stack([one.bank for one in scans]))


def read(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], *, tau: float) -> Top:
    """How rows that do not move read samples; a GPU never holds all their logits."""
    if backend(z.device) == CUDA and len(z):
        return cuda_scan.read(z, rows, tau=tau)
    return odds.top(odds.logits(z, rows, tau=tau))


def shared_targets(
    anchors: Anchors, z: Float[Tensor, "n d"], taught: Bool[Tensor, " n"], order: Int[Tensor, "S T"]
) -> TargetSource:
    """The soft targets of the images that teach, once for all streams that are orders of the same images.

    Rows of `order` name images of `z`; one past the last names nothing. Where few images come twice, or the table would
    be large, the anchors come back: each stream then computes its own.
    """
    chosen = z[taught]
    size = len(chosen) * len(anchors.rows) * z.element_size()
    if order.numel() < 2 * len(z) or not 0 < size <= TARGET_TABLE:
        return anchors
    place = pad((taught.cumsum(0) - 1).clamp(min=0), (0, 1))
    return SharedTargets(_softmax(chosen, anchors), place[order])


TARGET_TABLE = 8 << 30  # bytes of soft targets kept for all streams


def _softmax(z: Float[Tensor, "n d"], anchors: Anchors) -> Float[Tensor, "n C"]:
    if backend(z.device) == CUDA:
        return cuda_scan.softmax(z, anchors)
    return torch.softmax(odds.logits(z, anchors.rows, tau=anchors.tau), dim=-1)


def _logits(targets: TargetSource, z: Float[Tensor, "T d"]) -> Float[Tensor, "T C"]:
    if isinstance(targets, Anchors):
        return odds.logits(z, targets.rows, tau=targets.tau)
    return targets.rows[targets.at[0]].log() if isinstance(targets, SharedTargets) else targets


def _of_stream(targets: TargetSource, i: int) -> TargetSource:
    if isinstance(targets, SharedTargets):
        return SharedTargets(targets.rows, targets.at[i : i + 1])
    return targets if isinstance(targets, Anchors) else targets[i]
