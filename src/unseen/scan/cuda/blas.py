"""Matrix products by cuBLAS.

Every product gives cuBLAS its own precision, so torch's global settings (`allow_tf32` and the like) are neither used
nor changed, and threads do not affect one another.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import SettingError
from unseen.scan.cuda import bindings
from unseen.scan.cuda.bindings import check_status, pointer


class GemmTypes(NamedTuple):
    """The numbers of a product, its result and its sums, as cuBLAS names them."""

    numbers: int  # cudaDataType_t
    result: int  # cudaDataType_t
    compute: int  # cublasComputeType_t


GEMM_TYPES = {torch.float64: GemmTypes(1, 1, 70), torch.float32: GemmTypes(0, 0, 68)}


def check_dtype(z: Tensor) -> None:
    """Refuse samples of a dtype without a kernel."""
    if z.dtype not in (torch.float32, torch.float64):
        raise SettingError(f"expected float32 or float64 on the GPU, got {z.dtype}; convert with .float()")


def product(
    a: Float[Tensor, "B M k"],
    b: Float[Tensor, "B N k"],
    *,
    onto: Float[Tensor, "B M N"] | None = None,
    scale: float = 1.0,
) -> Float[Tensor, "B M N"]:
    """`scale * a @ b.mT`, added to `onto` in place where that is given."""
    out = bindings.empty((*a.shape[:2], b.shape[1]), dtype=a.dtype, device=a.device) if onto is None else onto
    gemm(a, b, out, scale, float(onto is not None), GEMM_TYPES[a.dtype])
    return out


def gemm(a: Tensor, b: Tensor, out: Tensor, scale: float, keep: float, types: GemmTypes) -> None:
    """Write `scale * a @ b.mT + keep * out` into `out` by cuBLAS."""
    (batch, rows, inner), columns = a.shape, b.shape[1]
    if not all(x.stride(-1) == 1 for x in (a, b, out)):
        raise SettingError("expected contiguous rows in a product on the GPU, got a transposed one; use .contiguous()")
    number = ctypes.c_double if out.dtype == torch.float64 else ctypes.c_float
    factors = number(scale), number(keep)
    check_status(
        cublas("cublasGemmStridedBatchedEx")(
            ctypes.c_void_p(cublas_handle()),
            *(1, 0, columns, rows, inner),  # cuBLAS counts by columns: out.T = b a.T
            ctypes.byref(factors[0]),
            *(pointer(b), types.numbers, max(b.stride(1), inner), ctypes.c_longlong(b.stride(0))),
            *(pointer(a), types.numbers, max(a.stride(1), inner), ctypes.c_longlong(a.stride(0))),
            ctypes.byref(factors[1]),
            *(pointer(out), types.result, out.stride(1), ctypes.c_longlong(out.stride(0))),
            *(batch, types.compute, -1),
        ),
        "a matrix product (cublasStatus_t)",
    )


@functools.cache
def cublas(name: str) -> Any:
    """A function of cuBLAS, from the library that torch has loaded."""
    return getattr(ctypes.CDLL(f"libcublas.so.{(torch.version.cuda or '').partition('.')[0]}"), name)


def cublas_handle() -> int:
    """This thread's handle in the default math mode; torch sets its own mode again when it calls."""
    handle = torch.cuda.current_blas_handle()
    check_status(cublas("cublasSetMathMode")(ctypes.c_void_p(handle), 0), "cublasSetMathMode (cublasStatus_t)")
    return handle


def gemm_address(dtype: torch.dtype) -> int | None:
    """The address of cuBLAS' batched matrix product, which kernels.cu calls."""
    letter = "S" if dtype == torch.float32 else "D"
    return ctypes.cast(cublas(f"cublas{letter}gemmStridedBatched"), ctypes.c_void_p).value
