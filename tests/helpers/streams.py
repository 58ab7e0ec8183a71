"""Small label spaces and streams that resemble CLIP's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen import LabelSpace


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def space(known: int = 6, negative: int = 30, dim: int = 16, *, dtype: torch.dtype = torch.float64) -> LabelSpace:
    return LabelSpace(
        tuple(f"name {i}" for i in range(known)),
        tuple(f"negative {i}" for i in range(negative)),
        unit(known, dim, seed=1, dtype=dtype),
        unit(negative, dim, seed=2, dtype=dtype),
    )


def stream(labels: LabelSpace, count: int = 80, *, seed: int = 3, noise: float = 0.15) -> Tensor:
    """Return samples around the anchors of both sides, so that a gate at tau = 0.01 routes most of them."""
    anchors = torch.cat([labels.id_anchors, labels.ood_anchors])
    generator = torch.Generator().manual_seed(seed)
    near = anchors[torch.randint(len(anchors), (count,), generator=generator)]
    return normalize(near + noise * torch.randn(near.shape, generator=generator, dtype=near.dtype), dim=-1)
