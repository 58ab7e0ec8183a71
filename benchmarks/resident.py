"""Algorithm 1 with both banks kept on the GPU: one launch per sample, for the latency benchmark and its test."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from unseen.errors import SettingError
from unseen.scan.cuda import build
from unseen.scan.cuda.bindings import check_status, current_stream

SOURCE = Path(__file__).with_name("resident.cu")


class Arguments(ctypes.Structure):
    """The arguments of the kernel `observe`: struct Resident in resident.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("anchors", "bank", "z", "partial", "peak", "where")),
        *((name, ctypes.c_void_p) for name in ("seen", "score", "label", "route", "barrier")),
        *((name, ctypes.c_int) for name in ("known", "classes", "dim")),
        *((name, ctypes.c_double) for name in ("tau", "kappa", "rho", "bound")),
    )


class Resident:
    """Both banks of one stream on the GPU, written in place: Algorithm 1 for a sample in one launch.

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
        known, self.dim = id_anchors.shape
        self.anchors = pad(torch.cat([id_anchors, ood_anchors]).float(), (0, -self.dim % 4)).contiguous()
        self.blocks = torch.cuda.get_device_properties(device).multi_processor_count
        if len(self.anchors) > 1024 * self.blocks:
            raise SettingError(
                f"expected at most {1024 * self.blocks} anchors on this GPU, got {len(self.anchors)}; use scan"
            )
        self.bank = self.anchors.clone()
        self.z = torch.zeros(self.anchors.shape[1], device=device)
        self.seen = torch.zeros(2, dtype=torch.int64, device=device)
        self.score, self.label, self.route = (
            torch.zeros((), dtype=kind, device=device) for kind in (torch.float64, torch.int64, torch.int32)
        )
        shapes = ((8 * self.blocks, torch.float64), (self.blocks, torch.float32), (self.blocks, torch.int32))
        partial, peak, where = (torch.zeros(size, dtype=kind, device=device) for size, kind in shapes)
        barrier = torch.zeros(2, dtype=torch.int32, device=device)
        inputs = (self.anchors, self.bank, self.z, partial, peak, where)
        # kept here, because the kernel has their addresses only
        self.tensors = (*inputs, self.seen, self.score, self.label, self.route, barrier)
        sizes = (known, *self.anchors.shape)
        self.arguments = Arguments(*(x.data_ptr() for x in self.tensors), *sizes, tau, kappa, rho, bound)
        self.kernel = build.library(torch.cuda.get_device_capability(device), SOURCE).observe_float32

    def launch(self) -> None:
        """Learn from and score the sample now in `z`."""
        check_status(self.kernel(ctypes.byref(self.arguments), self.blocks, current_stream(self.z)))

    def observe(self, z: Float[Tensor, " d"]) -> float:
        """Learn from one sample and return its score right after."""
        self.z[: self.dim].copy_(z, non_blocking=True)
        self.launch()
        return float(self.score)
