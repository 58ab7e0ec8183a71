"""Copy large tensors of which few rows are filled: rows of zeros take no memory until something is written to them.

A state has a row for every name, and a stream of a few samples has filled a few of them. Memory that the system hands
out reads as zeros and is taken, page by page, when it is touched.
"""

import mmap

import torch
from jaxtyping import Bool
from torch import Tensor

LARGE = 1 << 20  # bytes from which on rows of zeros are worth leaving out
# element size -> integers: as a number -0.0 is zero too
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sparse_copy(tensor: Tensor, filled: Bool[Tensor, " n"], *, share: float) -> Tensor:
    """A copy with memory of its own; where at most `share` of the rows are filled, the others take none."""
    if tensor.is_cuda or tensor.nbytes < LARGE:
        return tensor.clone()
    rows = filled.nonzero().squeeze(1)
    if len(rows) > share * len(tensor):
        return tensor.clone()
    return untouched_zeros(tensor).index_copy_(0, rows, tensor.index_select(0, rows))


def filled_rows(tensor: Tensor) -> Bool[Tensor, " n"]:
    """Which rows hold anything but zeros, bit by bit; all of a small tensor, where it does not matter."""
    if tensor.is_cuda or tensor.nbytes < LARGE:
        return torch.ones(tensor.shape[:1], dtype=torch.bool)
    bits = tensor.view(len(tensor), -1).view(BITS[tensor.element_size()])
    return (bits.amax(1) != 0) | (bits.amin(1) != 0)


def untouched_zeros(like: Tensor) -> Tensor:
    """Zeros of the shape and kind of `like`, aligned to a page, in memory that is not taken yet."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return torch.zeros_like(like)
    memory = mmap.mmap(-1, like.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)
