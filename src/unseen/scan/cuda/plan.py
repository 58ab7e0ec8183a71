"""How streams are divided into blocks, and which samples teach in each."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unseen.errors import SettingError

PANEL = 8  # the kernel goes through teachers in panels of this size
TEACHERS = 128  # most teachers of a block: a row's scale gathers one rounding from each
ROWS = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)  # samples of a block
CLASSES = 16 * 4 * 384  # thread blocks of a cluster, rows per thread, threads
LOG_RANGE = 60.0  # inside a block a row's scale may shrink to exp(-60), far from float32's underflow
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


class Plan(NamedTuple):
    """Blocks of equal size for every stream, and places for the samples that teach ("teachers") in each."""

    rows: int  # samples of a block
    teachers: int  # places for teachers in a block
    at: Int[Tensor, "S blocks N"]  # their positions in the stream; the kernel skips places past `counts`
    rate: Float[Tensor, "S blocks N"]  # step / kappa, zero in an empty place
    counts: Int[Tensor, "S blocks"]
    before: Int[Tensor, "S padded"]  # teachers of the block up to and including each sample

    @property
    def blocks(self) -> int:
        """How many blocks a stream has."""
        return self.counts.shape[1]


def make_plan(step: Float[Tensor, "S T"], kappa: float) -> Plan:
    """The plan with the largest blocks that do not have too many teachers. Waits for the GPU, once."""
    rates = (step / kappa).cpu().numpy()
    taught = prefix_sums(rates > 0)
    # one update divides a row's scale by at most 1 + step / kappa
    shrunk = prefix_sums(np.log1p(rates))
    for rows in ROWS:
        count = int(block_sums(taught, rows).max())
        if rows == 1 or (count <= TEACHERS and block_sums(shrunk, rows).max() <= LOG_RANGE):
            break
    return plan_blocks(step > 0, step / kappa, rows, max(PANEL, PANEL * -(-count // PANEL)))


def prefix_sums(values: Array) -> Array:
    """The sum of the first 0, 1, ... T values of each stream."""
    return np.pad(values.cumsum(axis=1, dtype=np.float64), ((0, 0), (1, 0)))


def block_sums(prefix: Array, rows: int) -> Array:
    """The sums inside consecutive blocks of `rows` values, from prefix sums."""
    ends = np.append(np.arange(0, prefix.shape[1] - 1, rows), prefix.shape[1] - 1)
    return np.diff(prefix[:, ends], axis=1)


def plan_blocks(is_taught: Bool[Tensor, "S T"], rate: Float[Tensor, "S T"], rows: int, teachers: int) -> Plan:
    """The plan for blocks of `rows` samples with `teachers` places each."""
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


def cluster_size(classes: int) -> int:
    """How many thread blocks share a bank: more rows each is more work, more blocks are more messages."""
    if classes > CLASSES:
        raise SettingError(
            f"expected at most {CLASSES} rows in a bank on the GPU, got {classes}; use fewer names, or the CPU's way "
            "with UNSEEN_SCAN=blocked"
        )
    return min(16, 1 << max(0, math.ceil(math.log2(classes / 320))))
