"""kernels.cu called from Python: argument structures, pointers, launches."""

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.odds import Top
from unseen.scan.cuda import build

empty = torch.empty  # tests replace it by one that fills memory with NaN


class LearnArguments(ctypes.Structure):
    """The arguments of the kernel `learn`: struct LearnArguments in kernels.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("cosine", "gram", "aim", "rate", "count", "coef", "scale")),
        *((f"per_{name}", ctypes.c_long) for name in ("cosine", "gram", "aim", "rate", "count", "coef", "scale")),
        *((name, ctypes.c_int) for name in ("teachers", "classes", "width", "rows")),
        ("kappa", ctypes.c_double),
    )


class ChainArguments(ctypes.Structure):
    """The arguments of `chain`: struct Chain in kernels.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("product", "handle", "taught", "learnt", "last")),
        ("learning", LearnArguments),
        *((f"next_{name}", ctypes.c_long) for name in ("taught", "gram", "aim", "rate", "count", "coef", "scale")),
        ("per_taught", ctypes.c_long),
        *((name, ctypes.c_int) for name in ("streams", "blocks", "dim", "cluster")),
    )


def top(
    logits: Float[Tensor, "T C"],
    *,
    tau: float = 1.0,
    scale: Tensor | None = None,
    before: Tensor | None = None,
    rows: int = 1,
) -> Top:
    """The best class of each row of `logits / tau`, its logit and the mass of the rest, in one pass."""
    samples, classes = logits.shape
    label, peak = (empty(samples, dtype=kind, device=logits.device) for kind in (torch.int64, logits.dtype))
    rest = torch.empty_like(peak)
    if samples:
        launch(
            "top",
            logits,
            *(pointer(x) for x in (logits, scale, before, label, peak, rest)),
            ctypes.c_long(samples),
            classes,
            rows,
            0 if scale is None else scale.shape[-2] - 1,
            ctypes.c_double(tau),
        )
    return Top(label, peak, rest)


def launch(name: str, like: Tensor, *arguments: Any) -> None:
    """Launch a kernel for the dtype and the device of `like`, in the CUDA stream that torch is filling there."""
    function = getattr(library_of(like), f"{name}_{str(like.dtype)[6:]}")
    check_status(function(*arguments, current_stream(like)))


def library_of(like: Tensor) -> ctypes.CDLL:
    """The kernels for the tensor's device."""
    return build.library(torch.cuda.get_device_capability(like.device))


def pointer(x: Tensor | None) -> ctypes.c_void_p:
    """Where a tensor begins on its device."""
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def current_stream(x: Tensor) -> ctypes.c_void_p:
    """The CUDA stream that torch is filling on the tensor's device."""
    return ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream)


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Make the tensor's device the current one: cuBLAS and launches go there."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def check_status(error: int, what: str = "the launch of a scan kernel (cudaError_t)") -> None:
    """Raise after a call that failed."""
    if error:
        raise RuntimeError(f"CUDA error {error} at {what}")
