"""The same numbers as `naive` on an NVIDIA GPU (Hopper or newer), for one stream or many at once.

The work of a block of samples splits in two. Teaching is a chain: the teachers' cosines (one product), one persistent
kernel that goes through the teachers in order (kernels.cu), one product that rewrites the bank. Reading hangs off the
chain: bank and lesson side by side make one wide matrix, so all reads of many blocks are one batched product, and a
kernel reduces its rows. Nothing waits for the host between the first sample and the last.

Every product says its own precision to cuBLAS, so what the process has asked torch for (`allow_tf32` and the like) is
neither obeyed nor changed, and threads do not disturb one another.

The kernels are compiled by nvcc at first use and kept in the cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unseen.errors import SettingError
from unseen.odds import Top
from unseen.scan.base import Anchors, Scan, Targets, Teacher
from unseen.storage.caches import cache_dir

PANEL = 8  # the kernel goes through teachers in panels of this size
TEACHERS = 128  # most teachers of a block: a row's scale gathers one rounding from each
ROWS = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)  # samples of a block
CLASSES = 16 * 4 * 384  # thread blocks of a cluster, rows per thread, threads
LOG_RANGE = 60.0  # inside a block a row's scale may shrink to exp(-60), far from float32's underflow
MEMORY = 6 << 30  # bytes for the banks and logits of the blocks read together
CHUNK = 16_384  # samples that a bank which does not move reads at once
SOURCE = Path(__file__).with_name("kernels.cu")
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
empty = torch.empty  # tests put one in its place that fills memory with NaN

Reads = Literal["float32", "split", "tf32"]
"""How the reads of float32 streams are multiplied.

float32   as it says: errors at most four times those of the naive loop in float32
split     on tensor cores, each number as the sum of two of float16, three products instead of one. The numbers lose
          nothing, but tensor cores cut sums off where float32 rounds them: at most ten times the naive loop's errors
tf32      on tensor cores, each number cut to 11 bits: docs/performance.md says what it costs and brings
"""
READS: Reads = "float32"  # where nobody asks for another


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
    teacher: Teacher,
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
    reads: Reads | None = None,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    if isinstance(teacher, Tensor):
        teacher = teacher[None]
    many = scan_many(bank, teacher, z[None], step[None], kappa=kappa, tau=tau, reads=reads)
    return Scan(Top(*(part[0] for part in many.read)), many.bank[0])


def scan_many(
    bank: Float[Tensor, "S C d"] | Float[Tensor, "C d"],
    teacher: Teacher,
    z: Float[Tensor, "S T d"],
    step: Float[Tensor, "S T"],
    *,
    kappa: float,
    tau: float,
    reads: Reads | None = None,
) -> Scan:
    """Return `scan` of S independent streams at once; a stream that is shorter ends in zero features and steps.

    Streams that start from the same bank may share one of shape [C, d]. `reads` is about reads only: what is learnt
    from is taken in float32, so banks are the same bits with every choice.
    """
    reads = checked_reads(reads or READS, z)
    streams, samples, dim = z.shape
    classes = bank.shape[-2]
    cluster_for(classes)  # refuse too many rows before any work
    bank = bank.expand(streams, classes, dim)
    got = Top(*(z.new_empty(streams, samples, dtype=kind) for kind in (torch.int64, z.dtype, z.dtype)))
    if not samples or not streams:
        return Scan(got, bank.clone())
    with on_device_of(z):
        return Scan(got, chained(bank, teacher, z, planned(step, kappa), got, kappa=kappa, tau=tau, reads=reads))


def chained(
    bank: Float[Tensor, "S C d"],
    teacher: Teacher,
    z: Float[Tensor, "S T d"],
    plan: Plan,
    got: Top,
    *,
    kappa: float,
    tau: float,
    reads: Reads,
) -> Float[Tensor, "S C d"]:
    """Go through the plan, as many blocks at a time as memory allows; write reads into `got`, return the last bank."""
    streams, samples, dim = z.shape
    classes = bank.shape[-2]
    width = 4 * -(-(plan.teachers + dim) // 4)  # rows start at multiples of 16 bytes
    split = 3 * dim // 2 if reads == "split" else 0
    bytes_per_block = z.element_size() * streams * classes * (width + split + 2 * plan.teachers + plan.rows)
    size = max(1, min(plan.blocks, MEMORY // bytes_per_block))
    for first in range(0, plan.blocks, size):
        blocks = slice(first, min(first + size, plan.blocks))
        part = slice(first * plan.rows, blocks.stop * plan.rows)
        chunk = z[:, part]
        if chunk.shape[1] < part.stop - part.start:
            chunk = pad(chunk, (0, 0, 0, part.stop - part.start - chunk.shape[1]))
        taught = gathered(z, plan.at[:, blocks])
        aim = targets(teacher, taught, plan.at[:, blocks]).mul_(plan.rate[:, blocks].unsqueeze(-1))
        wide, scale, bank = learn(bank, taught, aim, plan, blocks, width=width, kappa=kappa)
        pieces = read_blocks(chunk, taught, wide, scale, plan, blocks, tau=tau, reads=reads)
        for whole, piece in zip(got, pieces, strict=True):
            whole[:, part] = piece[:, : samples - part.start]
    return bank


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Make the tensor's device the current one: cuBLAS and launches go there."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def read(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], *, tau: float, reads: Reads | None = None) -> Top:
    """Return how a bank that does not move reads samples; their logits are never all in memory.

    Never in tf32: the gate reads with this, and routes must not depend on how a product is taken.
    """
    reads = checked_reads(reads or READS, z)
    reads = "float32" if reads == "tf32" else reads
    with on_device_of(z):
        parts = [top(multiplied(chunk[None], rows[None], reads=reads)[0], tau=tau) for chunk in z.split(CHUNK)]
    return Top(*(torch.cat(part) for part in zip(*parts, strict=True)))


def side_by_side(first: Callable[[], Scan], second: Callable[[], Scan], device: torch.device) -> tuple[Scan, Scan]:
    """Return the results of two independent scans that share the GPU: one's products fill the gaps of the other."""
    here, beside = torch.cuda.current_stream(device), side(device)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        two = second()
    one = first()
    here.wait_stream(beside)
    for x in (*two.read, two.bank):
        x.record_stream(here)
    return one, two


@functools.cache
def side(device: torch.device) -> torch.cuda.Stream:
    """Return the second queue of work of a device; threads may share it, they only wait a little longer then."""
    return torch.cuda.Stream(device)


def checked_reads(reads: str, z: Tensor) -> Reads:
    """Refuse a precision nobody has heard of, and samples in one that nothing here is written for."""
    if z.dtype not in (torch.float32, torch.float64):
        raise SettingError(f"expected float32 or float64 on the GPU, got {z.dtype}; convert with .float()")
    if reads not in get_args(Reads):
        raise SettingError(f"expected reads out of {', '.join(get_args(Reads))}, got {reads!r}")
    return reads  # type: ignore[return-value]


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


def targets(
    teacher: Teacher, taught: Float[Tensor, "S blocks N d"], at: Int[Tensor, "S blocks N"]
) -> Float[Tensor, "S blocks N C"]:
    """Return the softmax that each teacher of these blocks pulls the bank towards."""
    if isinstance(teacher, Targets):
        return teacher.rows[gathered(teacher.at.unsqueeze(-1), at).squeeze(-1)]
    if isinstance(teacher, Tensor):
        return torch.softmax(gathered(teacher, at), dim=-1)
    return softmax(taught.flatten(0, 2), teacher).view(*at.shape, -1)


def softmax(z: Float[Tensor, "n d"], anchors: Anchors) -> Float[Tensor, "n C"]:
    """Return the soft targets of samples, in float32 whatever the reads are: they are learnt from."""
    with on_device_of(z):
        return torch.softmax(multiplied((z / anchors.tau)[None], anchors.rows[None])[0], dim=-1)


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
    flat = taught.flatten(0, 1)
    gram = multiplied(flat, flat).view(streams, size, n, n)
    parts = (gram, aim, plan.rate[:, blocks], plan.counts[:, blocks], wide, scale)
    sizes = (n, classes, width, 0)
    lesson = [x.data_ptr() for x in (cosine, *parts)], [x.stride(0) for x in (cosine, *parts)], sizes, [kappa]
    steps = [x.stride(1) for x in (taught, *parts)]
    checked(
        kernel("chain", bank)(
            ctypes.byref(
                Chain(
                    product(bank.dtype),
                    blas_handle(),
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


def read_blocks(
    chunk: Float[Tensor, "S padded d"],
    taught: Float[Tensor, "S blocks N d"],
    wide: Float[Tensor, "S blocks C width"],
    scale: Float[Tensor, "S blocks N1 C"],
    plan: Plan,
    blocks: slice,
    *,
    tau: float,
    reads: Reads,
) -> Top:
    """Return how each sample reads the bank after the teachers up to and including itself.

    The bank is what it was less a lesson: `z @ bank.T - (past of z @ taught.T) @ lesson.T`, times the rows' scales.
    """
    streams, size, n, dim = taught.shape
    z = chunk.reshape(streams * size, plan.rows, dim)
    before = plan.before[:, blocks.start * plan.rows : blocks.stop * plan.rows].reshape(-1, plan.rows)
    past = torch.arange(n, device=z.device) < before.unsqueeze(-1)
    rows = wide.view(streams * size, -1, wide.shape[-1])[..., : n + dim]
    changed = multiplied(z, taught.view(-1, n, dim), scale=-1).mul_(past)
    if reads == "split":  # what was learnt may be of any size, which float16 is not
        unscaled = multiplied(changed, rows[..., :n])
        multiplied(z, rows[..., n:], onto=unscaled, reads="split")
    else:
        sides = torch.cat([changed, z], dim=-1)
        # a product adds up in order; two halves lose half as much to rounding
        half = n + dim // 2 if reads == "float32" else n + dim
        unscaled = multiplied(sides[..., :half], rows[..., :half], reads=reads)
        if half < n + dim:
            multiplied(sides[..., half:], rows[..., half:], onto=unscaled)
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


SPLIT = 1024.0  # unit vectors times this are in the middle of float16's range, and so is what float16 leaves of them


class Kind(NamedTuple):
    """How cuBLAS names the numbers of a product and the way it adds them up."""

    numbers: int
    result: int
    compute: int


KINDS = {  # cudaDataType_t, cudaDataType_t, cublasComputeType_t
    "float64": Kind(1, 1, 70),
    "float32": Kind(0, 0, 68),
    "tf32": Kind(0, 0, 77),
    "split": Kind(2, 0, 68),
}


def multiplied(
    a: Float[Tensor, "B M k"],
    b: Float[Tensor, "B N k"],
    *,
    onto: Float[Tensor, "B M N"] | None = None,
    scale: float = 1.0,
    reads: Reads = "float32",
) -> Float[Tensor, "B M N"]:
    """Return `scale * a @ b.mT`, added `onto` what is there where something is."""
    mode = "float64" if a.dtype == torch.float64 else reads
    out = empty((*a.shape[:2], b.shape[1]), dtype=a.dtype, device=a.device) if onto is None else onto
    if mode == "split":
        a, b, scale = halves(a, left=True), halves(b, left=False), scale / SPLIT**2
    gemm(a, b, out, scale, float(onto is not None), KINDS[mode])
    return out


def gemm(a: Tensor, b: Tensor, out: Tensor, scale: float, keep: float, kind: Kind) -> None:
    """Write `scale * a @ b.mT + keep * out` into `out` by cuBLAS."""
    (batch, rows, inner), columns = a.shape, b.shape[1]
    if not all(x.stride(-1) == 1 for x in (a, b, out)):
        raise SettingError("expected rows without gaps in a product on the GPU, got a transposed tensor")
    number = ctypes.c_double if out.dtype == torch.float64 else ctypes.c_float
    factors = number(scale), number(keep)
    checked(
        blas("cublasGemmStridedBatchedEx")(
            ctypes.c_void_p(blas_handle()),
            *(1, 0, columns, rows, inner),  # cuBLAS counts by columns: out.T = b a.T
            ctypes.byref(factors[0]),
            *(pointer(b), kind.numbers, max(b.stride(1), inner), ctypes.c_longlong(b.stride(0))),
            *(pointer(a), kind.numbers, max(a.stride(1), inner), ctypes.c_longlong(a.stride(0))),
            ctypes.byref(factors[1]),
            *(pointer(out), kind.result, out.stride(1), ctypes.c_longlong(out.stride(0))),
            *(batch, kind.compute, -1),
        ),
        "a matrix product (cublasStatus_t)",
    )


def halves(x: Float[Tensor, "B M d"], *, left: bool) -> Float[Tensor, "B M d3"]:
    """Return each number as float16 twice: itself and what that leaves, so that one product adds up three.

    A left side holds [high, low, high] and a right side [low, high, high]; low times low would be lost in rounding. The
    small products come first along the row, where the sum is still small and tensor cores cut little off.
    """
    batch, rows, dim = x.shape
    padded = 8 * -(-dim // 8)
    out = empty((batch, rows, 3 * padded), dtype=torch.float16, device=x.device)
    if x.stride(0) != rows * x.stride(1) and batch > 1:
        x = x.contiguous()
    if out.numel():
        sizes = (ctypes.c_long(batch * rows), dim, x.stride(1), padded, int(left), ctypes.c_float(SPLIT))
        checked(library_of(x).split(pointer(x), pointer(out), *sizes, queue(x)))
    return out


@functools.cache
def blas(name: str) -> ctypes._NamedFuncPointer:
    """Return a function of cuBLAS, from the library that torch has loaded."""
    return getattr(ctypes.CDLL(f"libcublas.so.{(torch.version.cuda or '').partition('.')[0]}"), name)


def blas_handle() -> int:
    """Return this thread's handle with products as exact as they come; torch sets its own mode again when it calls."""
    handle = torch.cuda.current_blas_handle()
    checked(blas("cublasSetMathMode")(ctypes.c_void_p(handle), 0), "cublasSetMathMode (cublasStatus_t)")
    return handle


def product(dtype: torch.dtype) -> int | None:
    """Return where cuBLAS keeps its batched matrix product."""
    letter = "S" if dtype == torch.float32 else "D"
    return ctypes.cast(blas(f"cublas{letter}gemmStridedBatched"), ctypes.c_void_p).value


def cluster_for(classes: int) -> int:
    """Return how many thread blocks share a bank: more rows each is work, more blocks is talk."""
    if classes > CLASSES:
        raise SettingError(
            f"expected at most {CLASSES} rows in a bank on the GPU, got {classes}; use fewer names, or the CPU's way "
            "with scan.using('blocked')"
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


def checked(error: int, what: str = "the launch of a scan kernel (cudaError_t)") -> None:
    """Refuse to go on after a launch that failed."""
    if error:
        raise RuntimeError(f"CUDA error {error} at {what}")


def kernel(name: str, like: Tensor) -> ctypes._NamedFuncPointer:
    """Return the launcher of a kernel for the tensor's dtype."""
    return getattr(library_of(like), f"{name}_{str(like.dtype)[6:]}")


def library_of(like: Tensor) -> ctypes.CDLL:
    """Return the kernels for the tensor's device."""
    return library(torch.cuda.get_device_capability(like.device))


@functools.cache
def library(capability: tuple[int, int]) -> ctypes.CDLL:
    """Return the compiled kernels, from the cache or from nvcc."""
    if capability < (9, 0):
        raise SettingError(
            f"expected a GPU of compute capability 9.0 or more for the CUDA scan, got {capability[0]}.{capability[1]}; "
            "use scan.using('blocked')"
        )
    target = f"sm_{capability[0]}{capability[1]}"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    name = f"scan-{digest}-{target}.so"
    for folder in caches():
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    return ctypes.CDLL(str(built(name, target)))


def built(name: str, target: str) -> Path:
    """Compile into the first folder that can be written to; two processes that do so at once both get a whole file."""
    refused: list[str] = []
    for folder in caches():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                compiled = Path(scratch) / name
                compiled_from(SOURCE, compiled, target)
                compiled.replace(folder / name)
            return folder / name
        except OSError as error:  # a home that is read-only, full or not there
            refused.append(f"{folder} ({error.strerror})")
    raise SettingError(
        f"expected a folder to keep the compiled scan in, got {' and '.join(refused)}; "
        "set UNSEEN_CACHE to one that can be written to"
    )


def compiled_from(source: Path, target_file: Path, target: str) -> None:
    """Run nvcc, and show what it says when it fails."""
    options = ["-O3", "-std=c++17", f"-arch={target}", "-shared", "-split-compile=0", "-Xcompiler", "-fPIC"]
    done = subprocess.run([nvcc(), *options, "-o", str(target_file), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise SettingError(
            f"expected nvcc to compile the CUDA scan, got exit status {done.returncode}; "
            f"CUDA 12.3 or newer is needed:\n{done.stderr[-2000:]}"
        )


def caches() -> list[Path]:
    """Return where compiled kernels may be kept: the user's cache, or a temporary folder that is this user's alone."""
    temporary = Path(tempfile.gettempdir()) / f"unseen-{os.getuid()}"
    return [cache_dir(), *([temporary] if is_private(temporary) else [])]


def is_private(folder: Path) -> bool:
    """Tell whether nobody else can have put a file there, or it does not exist yet: what lies there is going to run."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def nvcc() -> str:
    """Return the CUDA compiler, or say how to get it."""
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    found = shutil.which("nvcc") or (str(beside) if beside.exists() else None)
    if found is None:
        raise SettingError(
            "expected nvcc to compile the CUDA scan once, got none; install the CUDA toolkit or set CUDA_HOME, "
            "or use scan.using('blocked')"
        )
    return found
