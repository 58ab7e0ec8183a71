"""Streams to scan and how far two scans are apart: shared by the tests of every backend, with nothing but torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helpers.streams import unit
from unseen.scan import Scan

PAPER: dict[str, Any] = {"kappa": 0.05, "tau": 0.01}


def case(
    samples: int, classes: int, dim: int, share: float, *, rho: float = 0.1, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, samples around them and decaying steps for a share of the samples, in float64."""
    generator = torch.Generator().manual_seed(seed)
    anchors = unit(classes, dim, seed=seed + 1)
    near = anchors[torch.randint(classes, (samples,), generator=generator)]
    z = torch.nn.functional.normalize(near + 0.3 * unit(samples, dim, seed=seed + 2), dim=-1)
    taught = torch.rand(samples, generator=generator) < share
    return anchors, z, torch.where(taught, rho / taught.cumsum(0).clamp(min=1).double().sqrt(), 0.0)


def difference(got: Scan, expected: Scan) -> dict[str, float]:
    return {
        "bank": float((got.bank - expected.bank).abs().max()),
        "peak": float((got.read.peak - expected.read.peak).abs().max()) if len(got.read.peak) else 0.0,
        "energy": float((got.read.energy - expected.read.energy).abs().max()) if len(got.read.peak) else 0.0,
    }
