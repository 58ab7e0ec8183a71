"""Margins as streams have them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EULER = 0.5772156649015329  # mean of a standard Gumbel


def normal(count: int, mean: float, deviation: float, *, seed: int = 0) -> Tensor:
    """Normal draws: margins of known images."""
    generator = torch.Generator().manual_seed(seed)
    return mean + deviation * torch.randn(count, generator=generator, dtype=torch.float64)


def gumbel(count: int, mean: float, deviation: float, *, seed: int = 1) -> Tensor:
    """Gumbel draws: margins of unknown images."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    scale = deviation * math.sqrt(6) / math.pi
    return mean - scale * EULER - scale * torch.log(-torch.log(uniform))


def two_modes(count: int, *, seed: int = 0, gap: float = 8.0) -> tuple[Tensor, Tensor]:
    """Margins of a stream of both kinds, and which samples are known."""
    generator = torch.Generator().manual_seed(seed)
    is_id = torch.rand(count, generator=generator) < 0.6
    return torch.randn(count, generator=generator) + torch.where(is_id, gap / 2, -gap / 2), is_id
