"""The scan on a GPU.

The work of a block of samples splits in two. Teaching is a chain: the teachers' cosines (one product), one persistent
kernel that goes through the teachers in order (kernels.cu), one product that rewrites the bank. Reading does not hold
up the chain: bank and coefficients side by side make one wide matrix, so all reads of many blocks are one batched
product, and a kernel reduces its rows. Nothing waits for the host between the first sample and the last.
"""

import ctypes
import functools
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unseen.odds import Top
from unseen.scan.base import Anchors, Scan, SharedTargets, TargetSource
from unseen.scan.cuda import bindings
from unseen.scan.cuda.bindings import ChainArguments, LearnArguments, launch, on_device_of, top
from unseen.scan.cuda.blas import check_dtype, cublas_handle, gemm_address, product
from unseen.scan.cuda.plan import Plan, cluster_size, make_plan

CHUNK = 16_384  # samples that a bank which does not move reads at once


def scan(
    bank: Float[Tensor, "C d"],
    targets: TargetSource,
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
    memory: int = 6 << 30,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    if isinstance(targets, Tensor):
        targets = targets[None]
    many = scan_many(bank, targets, z[None], step[None], kappa=kappa, tau=tau, memory=memory)
    return Scan(Top(*(part[0] for part in many.read)), many.bank[0])


def scan_many(
    bank: Float[Tensor, "S C d"] | Float[Tensor, "C d"],
    targets: TargetSource,
    z: Float[Tensor, "S T d"],
    step: Float[Tensor, "S T"],
    *,
    kappa: float,
    tau: float,
    memory: int = 6 << 30,
) -> Scan:
    """`scan` of S independent streams at once; a stream that is shorter ends in zero features and steps.

    Streams that start from the same bank may share one of shape [C, d].
    `memory` is how many bytes the banks and logits of the blocks that are read together may take.
    """
    check_dtype(z)
    streams, samples, dim = z.shape
    classes = bank.shape[-2]
    cluster_size(classes)  # refuse too many rows before any work
    bank = bank.expand(streams, classes, dim)
    read = Top(*(z.new_empty(streams, samples, dtype=kind) for kind in (torch.int64, z.dtype, z.dtype)))
    if not samples or not streams:
        return Scan(read, bank.clone())
    with on_device_of(z):
        plan = make_plan(step, kappa)
        return Scan(read, scan_blocks(bank, targets, z, plan, read, kappa=kappa, tau=tau, memory=memory))


def scan_blocks(
    bank: Float[Tensor, "S C d"],
    targets: TargetSource,
    z: Float[Tensor, "S T d"],
    plan: Plan,
    read: Top,
    *,
    kappa: float,
    tau: float,
    memory: int,
) -> Float[Tensor, "S C d"]:
    """Go through the plan, as many blocks at a time as memory allows; write into `read`, return the last bank."""
    samples, dim = z.shape[1:]
    width = 4 * -(-(plan.teachers + dim) // 4)  # rows start at multiples of 16 bytes
    size = blocks_at_once(bank, plan, width, memory)
    for first in range(0, plan.blocks, size):
        blocks = slice(first, min(first + size, plan.blocks))
        part = slice(first * plan.rows, blocks.stop * plan.rows)
        chunk = z[:, part]
        if chunk.shape[1] < part.stop - part.start:
            chunk = pad(chunk, (0, 0, 0, part.stop - part.start - chunk.shape[1]))
        taught = gather_rows(z, plan.at[:, blocks])
        aim = soft_targets(targets, taught, plan.at[:, blocks]).mul_(plan.rate[:, blocks].unsqueeze(-1))
        wide, scale, bank = learn(bank, taught, aim, plan, blocks, width=width, kappa=kappa)
        pieces = read_blocks(chunk, taught, wide, scale, plan, blocks, tau=tau)
        for whole, piece in zip(read, pieces, strict=True):
            whole[:, part] = piece[:, : samples - part.start]
    return bank


def blocks_at_once(bank: Float[Tensor, "S C d"], plan: Plan, width: int, memory: int) -> int:
    """How many blocks of all streams fit into some bytes of memory."""
    streams, classes, _ = bank.shape
    bytes_per_block = bank.element_size() * streams * classes * (width + 2 * plan.teachers + plan.rows)
    return max(1, min(plan.blocks, memory // bytes_per_block))


def read(z: Float[Tensor, "T d"], rows: Float[Tensor, "C d"], *, tau: float) -> Top:
    """How a bank that does not move reads samples; their logits are never all in memory."""
    check_dtype(z)
    with on_device_of(z):
        parts = [top(product(chunk[None], rows[None])[0], tau=tau) for chunk in z.split(CHUNK)]
    return Top(*(torch.cat(part) for part in zip(*parts, strict=True)))


def run_both(first: Callable[[], Scan], second: Callable[[], Scan], device: torch.device) -> tuple[Scan, Scan]:
    """The results of two independent scans that share the GPU: one's products fill the gaps of the other."""
    main, side = torch.cuda.current_stream(device), side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        two = second()
    one = first()
    main.wait_stream(side)
    for x in (*two.read, two.bank):
        x.record_stream(main)
    return one, two


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """A second CUDA stream of a device; threads may share it, they only wait a little longer then."""
    return torch.cuda.Stream(device)


def gather_rows(source: Float[Tensor, "S T k"], at: Int[Tensor, "S blocks N"]) -> Float[Tensor, "S blocks N k"]:
    """The rows of each stream at these positions."""
    streams = torch.arange(len(source), device=source.device).view(-1, 1, 1)
    return source[streams, at]


def soft_targets(
    targets: TargetSource, taught: Float[Tensor, "S blocks N d"], at: Int[Tensor, "S blocks N"]
) -> Float[Tensor, "S blocks N C"]:
    """The softmax that each teacher of these blocks pulls the bank towards."""
    if isinstance(targets, SharedTargets):
        return targets.rows[gather_rows(targets.at.unsqueeze(-1), at).squeeze(-1)]
    if isinstance(targets, Tensor):
        return torch.softmax(gather_rows(targets, at), dim=-1)
    return softmax(taught.flatten(0, 2), targets).view(*at.shape, -1)


def softmax(z: Float[Tensor, "n d"], anchors: Anchors) -> Float[Tensor, "n C"]:
    """The soft targets of samples."""
    with on_device_of(z):
        return torch.softmax(product((z / anchors.tau)[None], anchors.rows[None])[0], dim=-1)


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
    """Coefficients and bank of each block side by side, rows' scales after each teacher, and the last bank."""
    streams, size, n, dim = taught.shape
    classes = bank.shape[1]
    new = functools.partial(bindings.empty, dtype=bank.dtype, device=bank.device)
    wide, scale = new((streams, size, classes, width)), new((streams, size, n + 1, classes))
    after, learnt, cosine = new((streams, classes, dim)), new((streams, classes, dim)), new((streams, n, classes))
    wide[:, 0, :, n : n + dim] = bank
    flat = taught.flatten(0, 1)
    gram = product(flat, flat).view(streams, size, n, n)
    parts = (gram, aim, plan.rate[:, blocks], plan.counts[:, blocks], wide, scale)
    pointers, strides = zip(*((x.data_ptr(), x.stride(0)) for x in (cosine, *parts)), strict=True)
    chain = ChainArguments(
        gemm_address(bank.dtype),
        cublas_handle(),
        *(x.data_ptr() for x in (taught, learnt, after)),
        LearnArguments(*pointers, *strides, n, classes, width, 0, kappa),
        *(x.stride(1) for x in (taught, *parts)),
        taught.stride(0),
        *(streams, size, dim, cluster_size(classes)),
    )
    launch("chain", bank, ctypes.byref(chain))
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
) -> Top:
    """How each sample reads the bank after the teachers up to and including itself.

    The logits are `z @ bank.T - (past of z @ taught.T) @ coefficients.T`, times the rows' scales.
    """
    streams, size, n, dim = taught.shape
    z = chunk.reshape(streams * size, plan.rows, dim)
    before = plan.before[:, blocks.start * plan.rows : blocks.stop * plan.rows].reshape(-1, plan.rows)
    past = torch.arange(n, device=z.device) < before.unsqueeze(-1)
    rows = wide.view(streams * size, -1, wide.shape[-1])[..., : n + dim]
    changed = product(z, taught.view(-1, n, dim), scale=-1).mul_(past)
    sides, half = torch.cat([changed, z], dim=-1), n + dim // 2
    unscaled = product(sides[..., :half], rows[..., :half])
    product(sides[..., half:], rows[..., half:], onto=unscaled)  # adds up in order: two halves round half as much
    best = top(unscaled.view(-1, unscaled.shape[-1]), tau=tau, scale=scale, before=before, rows=plan.rows)
    return Top(*(part.view(streams, -1) for part in best))
