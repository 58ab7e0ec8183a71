"""The same numbers as `naive` on an NVIDIA GPU (Hopper or newer), for one stream or many at once.

The work of a block of samples splits in two. Teaching is a chain: the teachers' cosines (one product), one persistent
kernel that goes through the teachers in order (kernels.cu), one product that rewrites the bank. Reading hangs off the
chain: bank and lesson side by side make one wide matrix, so all reads of many blocks are one batched product, and a
kernel reduces its rows. Nothing waits for the host between the first sample and the last.

The kernels are compiled by nvcc at first use and kept in ~/.cache/unseen.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unseen.errors import SettingError
from unseen.odds import Top
from unseen.scan.base import Scan

PANEL = 8  # the kernel goes through teachers in panels of this size
TEACHERS = 128  # most teachers of a block: a row's scale gathers one rounding from each
ROWS = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)  # samples of a block
CLASSES = 16 * 4 * 384  # thread blocks of a cluster, rows per thread, threads
LOG_RANGE = 60.0  # inside a block a row's scale may shrink to exp(-60), far from float32's underflow
MEMORY = 6 << 30  # bytes for the banks and logits of the blocks read together
SOURCE = Path(__file__).with_name("kernels.cu")
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
empty = torch.empty  # tests put one in its place that fills memory with NaN


class Anchors(NamedTuple):
    """Teacher logits not yet taken: `z @ rows.T / tau`, computed for the samples that teach and for no other."""

    rows: Float[Tensor, "C d"]
    tau: float


class Plan(NamedTuple):
    """How streams are cut into blocks, and who teaches in each."""

    rows: int  # samples of a block
    teachers: int  # places for teachers in a block
    at: Int[Tensor, "S blocks N"]  # where they stand in the stream; the kernel skips places past `counts`
    rate: Float[Tensor, "S blocks N"]  # step / kappa, zero in an empty place
    counts: Int[Tensor, "S blocks"]
    before: Int[Tensor, "S padded"]  # teachers of the block up to and including each sample

    @property
    def blocks(self) -> int:
        """Return how many blocks a stream has."""
        return self.counts.shape[1]


def scan(
    bank: Float[Tensor, "C d"],
    teacher: Float[Tensor, "T C"] | Anchors,
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
    fast: bool = False,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    if isinstance(teacher, Tensor):
        teacher = teacher[None]
    many = scan_many(bank, teacher, z[None], step[None], kappa=kappa, tau=tau, fast=fast)
    return Scan(Top(*(part[0] for part in many.read)), many.bank[0])


def scan_many(
    bank: Float[Tensor, "S C d"] | Float[Tensor, "C d"],
    teacher: Float[Tensor, "S T C"] | Anchors,
    z: Float[Tensor, "S T d"],
    step: Float[Tensor, "S T"],
    *,
    kappa: float,
    tau: float,
    fast: bool = False,
) -> Scan:
    """Return `scan` of S independent streams at once; a stream that is shorter ends in zero features and steps.

    Streams that start from the same bank may share one of shape [C, d]. `fast` takes the reads, and nothing that is
    learnt from, in tf32: docs/performance.md says what it costs and brings.
    """
    streams, samples, dim = z.shape
    classes = bank.shape[-2]
    bank = bank.expand(streams, classes, dim)
    read = Top(*(z.new_empty(streams, samples, dtype=kind) for kind in (torch.int64, z.dtype, z.dtype)))
    if not samples or not streams:
        return Scan(read, bank.clone())
    with products("highest"):
        plan = planned(step, kappa)
        width = 4 * -(-(plan.teachers + dim) // 4)  # rows start at multiples of 16 bytes
        bytes_per_block = z.element_size() * streams * classes * (width + 2 * plan.teachers + plan.rows)
        size = max(1, min(plan.blocks, MEMORY // bytes_per_block))
        for first in range(0, plan.blocks, size):
            blocks = slice(first, min(first + size, plan.blocks))
            part = slice(first * plan.rows, blocks.stop * plan.rows)
            chunk = z[:, part]
            if chunk.shape[1] < part.stop - part.start:
                chunk = pad(chunk, (0, 0, 0, part.stop - part.start - chunk.shape[1]))
            taught = gathered(z, plan.at[:, blocks])
            aim = targets(teacher, z, plan, blocks).mul_(plan.rate[:, blocks].unsqueeze(-1))
            wide, scale, bank = learn(bank, taught, aim, plan, blocks, width=width, kappa=kappa)
            got = reads(chunk, taught, wide, scale, plan, blocks, tau=tau, fast=fast)
            for whole, piece in zip(read, got, strict=True):
                whole[:, part] = piece[:, : samples - part.start]
    return Scan(read, bank)


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Take float32 products in this precision, whatever the process has asked torch for."""
    asked = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(asked)


def planned(step: Float[Tensor, "S T"], kappa: float) -> Plan:
    """Return the widest cut in which no block has too many teachers. The only time the host waits for the GPU."""
    rates = (step / kappa).cpu().numpy()
    taught = summed(rates > 0)
    # one update divides a row's scale by at most 1 + step / kappa
    shrunk = summed(np.log1p(rates))
    for rows in ROWS:
        count = int(within(taught, rows).max())
        if rows == 1 or (count <= TEACHERS and within(shrunk, rows).max() <= LOG_RANGE):
            break
    return placed(step > 0, step / kappa, rows, max(PANEL, PANEL * -(-count // PANEL)))


def summed(values: Array) -> Array:
    """Return the sum of the first 0, 1, ... T values of each stream."""
    return np.pad(values.cumsum(axis=1, dtype=np.float64), ((0, 0), (1, 0)))


def within(total: Array, rows: int) -> Array:
    """Return the sums inside consecutive blocks, given those from the start."""
    ends = np.append(np.arange(0, total.shape[1] - 1, rows), total.shape[1] - 1)
    return np.diff(total[:, ends], axis=1)


def placed(is_taught: Bool[Tensor, "S T"], rate: Float[Tensor, "S T"], rows: int, teachers: int) -> Plan:
    """Return the plan for blocks of `rows` samples with `teachers` places each."""
    streams, samples = rate.shape
    blocks = -(-samples // rows)
    inside = pad(is_taught, (0, blocks * rows - samples)).view(streams, blocks, rows)
    before = inside.cumsum(2)
    first = torch.arange(blocks, device=rate.device).unsqueeze(1) * teachers
    nowhere = blocks * teachers
    place = torch.where(inside, first + before - 1, nowhere).view(streams, -1)[:, :samples]
    at = place.new_zeros(streams, nowhere + 1)
    at.scatter_(1, place, torch.arange(samples, device=rate.device).expand(streams, -1))
    is_there = place.new_zeros(streams, nowhere + 1, dtype=rate.dtype).scatter_(1, place, 1.0)
    shape = (streams, blocks, teachers)
    return Plan(
        rows,
        teachers,
        at[:, :-1].reshape(shape),
        (rate.gather(1, at) * is_there)[:, :-1].reshape(shape),
        before[:, :, -1].to(torch.int32).contiguous(),
        before.view(streams, -1).to(torch.int32),
    )


def gathered(source: Float[Tensor, "S T k"], at: Int[Tensor, "S blocks N"]) -> Float[Tensor, "S blocks N k"]:
    """Return the rows of each stream that stand `at` these places."""
    streams = torch.arange(len(source), device=source.device).view(-1, 1, 1)
    return source[streams, at]


def targets(teacher: Tensor | Anchors, z: Tensor, plan: Plan, blocks: slice) -> Float[Tensor, "S blocks N C"]:
    """Return the softmax that each teacher of these blocks pulls the bank towards."""
    at = plan.at[:, blocks]
    if isinstance(teacher, Tensor):
        return torch.softmax(gathered(teacher, at), dim=-1)
    return torch.softmax((gathered(z, at) / teacher.tau) @ teacher.rows.T, dim=-1)


def learn(
    bank: Float[Tensor, "S C d"],
    taught: Float[Tensor, "S blocks N d"],
    aim: Float[Tensor, "S blocks N C"],
    plan: Plan,
    blocks: slice,
    *,
    width: int,
    kappa: float,
) -> tuple[Float[Tensor, "S blocks C width"], Float[Tensor, "S blocks N1 C"], Float[Tensor, "S C d"]]:
    """Return lesson and bank of each block side by side, the rows' scales after each teacher, and the last bank."""
    streams, size, n, dim = taught.shape
    classes = bank.shape[1]
    wide = empty((streams, size, classes, width), dtype=bank.dtype, device=bank.device)
    scale = empty((streams, size, n + 1, classes), dtype=bank.dtype, device=bank.device)
    after = empty((streams, classes, dim), dtype=bank.dtype, device=bank.device)
    wide[:, 0, :, n : n + dim] = bank
    inner = [empty((streams, *shape), dtype=bank.dtype, device=bank.device) for shape in ((n, classes), (classes, dim))]
    cosine, learnt = inner
    parts = (taught @ taught.mT, aim, plan.rate[:, blocks], plan.counts[:, blocks], wide, scale)
    sizes = (n, classes, width, 0)
    lesson = [x.data_ptr() for x in (cosine, *parts)], [x.stride(0) for x in (cosine, *parts)], sizes, [kappa]
    steps = [x.stride(1) for x in (taught, *parts)]
    checked(
        kernel("chain", bank)(
            ctypes.byref(
                Chain(
                    product(bank.dtype),
                    torch.cuda.current_blas_handle(),
                    *(x.data_ptr() for x in (taught, learnt, after)),
                    Lesson(*(value for values in lesson for value in values)),
                    *steps,
                    taught.stride(0),
                    *(streams, size, dim, cluster_for(classes)),
                )
            ),
            queue(bank),
        )
    )
    return wide, scale, after


def reads(
    chunk: Float[Tensor, "S padded d"],
    taught: Float[Tensor, "S blocks N d"],
    wide: Float[Tensor, "S blocks C width"],
    scale: Float[Tensor, "S blocks N1 C"],
    plan: Plan,
    blocks: slice,
    *,
    tau: float,
    fast: bool,
) -> Top:
    """Return how each sample reads the bank after the teachers up to and including itself, from one product."""
    streams, size, n, dim = taught.shape
    z = chunk.reshape(streams * size, plan.rows, dim)
    before = plan.before[:, blocks.start * plan.rows : blocks.stop * plan.rows].reshape(-1, plan.rows)
    past = torch.arange(n, device=z.device) < before.unsqueeze(-1)
    sides = empty((*z.shape[:2], n + dim), dtype=z.dtype, device=z.device)
    sides[..., n:] = z
    sides[..., :n] = torch.bmm(z, taught.view(-1, n, dim).mT).neg_().mul_(past)
    rows = wide.view(streams * size, -1, wide.shape[-1])[..., : n + dim]
    if fast:
        with products("high"):
            unscaled = torch.bmm(sides, rows.mT)
    else:  # a product adds up in order; two halves lose half as much to rounding
        half = n + dim // 2
        unscaled = torch.bmm(sides[..., :half], rows[..., :half].mT)
        unscaled.baddbmm_(sides[..., half:], rows[..., half:].mT)
    got = top(unscaled.view(-1, unscaled.shape[-1]), tau=tau, scale=scale, before=before, rows=plan.rows)
    return Top(*(part.view(streams, -1) for part in got))


def top(
    logits: Float[Tensor, "T C"],
    *,
    tau: float = 1.0,
    scale: Tensor | None = None,
    before: Tensor | None = None,
    rows: int = 1,
) -> Top:
    """Return the best class of each row of `logits / tau`, its logit and the mass of the rest, in one pass."""
    samples, classes = logits.shape
    label, peak = (empty(samples, dtype=kind, device=logits.device) for kind in (torch.int64, logits.dtype))
    rest = torch.empty_like(peak)
    if samples:
        checked(
            kernel("top", logits)(
                *(pointer(x) for x in (logits, scale, before, label, peak, rest)),
                ctypes.c_long(samples),
                classes,
                rows,
                0 if scale is None else scale.shape[-2] - 1,
                ctypes.c_double(tau),
                queue(logits),
            )
        )
    return Top(label, peak, rest)


class Lesson(ctypes.Structure):
    """The arguments of the kernel `learn`, as kernels.cu declares them."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cosine", "gram", "aim", "rate", "count", "coef", "scale")),
        *((f"per_{name}", ctypes.c_long) for name in ("cosine", "gram", "aim", "rate", "count", "coef", "scale")),
        *((name, ctypes.c_int) for name in ("teachers", "classes", "width", "rows")),
        ("kappa", ctypes.c_double),
    )


class Chain(ctypes.Structure):
    """The arguments of `chain`, as kernels.cu declares them."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("product", "handle", "taught", "learnt", "last")),
        ("lesson", Lesson),
        *((f"next_{name}", ctypes.c_long) for name in ("taught", "gram", "aim", "rate", "count", "coef", "scale")),
        ("per_taught", ctypes.c_long),
        *((name, ctypes.c_int) for name in ("streams", "blocks", "dim", "cluster")),
    )


def product(dtype: torch.dtype) -> int | None:
    """Return where cuBLAS keeps its batched matrix product, in the library that torch has loaded."""
    letter = "S" if dtype == torch.float32 else "D"
    name = f"libcublas.so.{(torch.version.cuda or '').partition('.')[0]}"
    return ctypes.cast(getattr(ctypes.CDLL(name), f"cublas{letter}gemmStridedBatched"), ctypes.c_void_p).value


def cluster_for(classes: int) -> int:
    """Return how many thread blocks share a bank: more rows each is work, more blocks is talk."""
    if classes > CLASSES:
        raise SettingError(
            f"expected at most {CLASSES} rows in a bank on the GPU, got {classes}; use unseen.scan.blocked"
        )
    return min(16, 1 << max(0, math.ceil(math.log2(classes / 320))))


class Job(ctypes.Structure):
    """The arguments of the kernel `observe`, as kernels.cu declares them."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("anchors", "bank", "z", "partial", "peak", "where")),
        *((name, ctypes.c_void_p) for name in ("seen", "score", "label", "route", "barrier")),
        *((name, ctypes.c_int) for name in ("known", "classes", "dim")),
        *((name, ctypes.c_double) for name in ("tau", "kappa", "rho", "bound")),
    )


class Resident:
    """Both banks of one stream kept on the GPU and written in place: Algorithm 1 for a sample in one launch.

    `z`, `score`, `label`, `route`, `bank` and `seen` are fixed tensors, so that a CUDA graph can hold the launch.
    """

    def __init__(
        self,
        id_anchors: Float[Tensor, "K d"],
        ood_anchors: Float[Tensor, "L d"],
        *,
        tau: float = 0.01,
        kappa: float = 0.05,
        rho: float = 0.1,
        bound: float,
    ) -> None:
        if tau < 2 / 700 or kappa < 2 / 700:
            raise SettingError(f"expected tau and kappa of at least 0.003 here, got {tau} and {kappa}; use scan")
        device = id_anchors.device
        self.known, self.dim = id_anchors.shape
        anchors = torch.cat([id_anchors, ood_anchors]).float()
        self.anchors = pad(anchors, (0, -self.dim % 4)).contiguous()
        self.bank = self.anchors.clone()
        self.z = torch.zeros(self.anchors.shape[1], device=device)
        self.seen = torch.zeros(2, dtype=torch.int64, device=device)
        self.score = torch.zeros((), dtype=torch.float64, device=device)
        self.label = torch.zeros((), dtype=torch.int64, device=device)
        self.route = torch.zeros((), dtype=torch.int32, device=device)
        self.blocks = torch.cuda.get_device_properties(device).multi_processor_count
        sums = torch.zeros(8 * self.blocks, dtype=torch.float64, device=device)
        peak, where = (torch.zeros(self.blocks, dtype=kind, device=device) for kind in (torch.float32, torch.int32))
        barrier = torch.zeros(2, dtype=torch.int32, device=device)
        if len(anchors) > 1024 * self.blocks:
            raise SettingError(f"expected at most {1024 * self.blocks} anchors on this GPU, got {len(anchors)}")
        self.scratch = (sums, peak, where, barrier)  # the kernel only has their addresses
        arrays = (self.anchors, self.bank, self.z, sums, peak, where)
        results = (self.seen, self.score, self.label, self.route, barrier)
        sizes = (self.known, *self.anchors.shape)
        self.job = Job(*(x.data_ptr() for x in (*arrays, *results)), *sizes, tau, kappa, rho, bound)
        self.kernel = kernel("observe", self.z)

    def launch(self) -> None:
        """Learn from and score the sample now in `z`."""
        checked(self.kernel(ctypes.byref(self.job), self.blocks, queue(self.z)))

    def observe(self, z: Float[Tensor, " d"]) -> float:
        """Learn from one sample and return its score right after."""
        self.z[: self.dim].copy_(z, non_blocking=True)
        self.launch()
        return float(self.score)


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    """Return where a tensor begins on its device."""
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def queue(x: Tensor) -> ctypes.c_void_p:
    """Return the CUDA stream that torch is filling on the tensor's device."""
    return ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream)


def checked(error: int) -> None:
    """Refuse to go on after a launch that failed."""
    if error:
        raise RuntimeError(f"CUDA error {error} at the launch of a scan kernel; see cudaError_t for its meaning")


def kernel(name: str, like: Tensor) -> ctypes._NamedFuncPointer:
    """Return the launcher of a kernel for the tensor's dtype."""
    if like.dtype not in (torch.float32, torch.float64):
        raise SettingError(f"expected float32 or float64 on the GPU, got {like.dtype}; convert with .float()")
    return getattr(library(torch.cuda.get_device_capability(like.device)), f"{name}_{str(like.dtype)[6:]}")


@functools.cache
def library(capability: tuple[int, int]) -> ctypes.CDLL:
    """Return the compiled kernels, from the cache or from nvcc."""
    if capability < (9, 0):
        raise SettingError(
            f"expected a GPU of compute capability 9.0 or more for the CUDA scan, got {capability[0]}.{capability[1]}; "
            "use unseen.scan.blocked"
        )
    target = f"sm_{capability[0]}{capability[1]}"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "unseen"
    built = folder / f"scan-{digest}-{target}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            compiled = Path(scratch) / built.name
            options = ["-O3", "-std=c++17", f"-arch={target}", "-shared", "-split-compile=0", "-Xcompiler", "-fPIC"]
            subprocess.run([nvcc(), *options, "-o", str(compiled), str(SOURCE)], check=True, capture_output=True)
            compiled.replace(built)
    return ctypes.CDLL(str(built))


def nvcc() -> str:
    """Return the CUDA compiler, or say how to get it."""
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    found = shutil.which("nvcc") or (str(beside) if beside.exists() else None)
    if found is None:
        raise SettingError(
            "expected nvcc to compile the CUDA scan once, got none; install the CUDA toolkit or set CUDA_HOME, "
            "or use unseen.scan.blocked"
        )
    return found
