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
    """Samples around the anchors of both sides, so that a gate at tau = 0.01 routes most of them."""
    anchors = torch.cat([labels.id_anchors, labels.ood_anchors])
    generator = torch.Generator().manual_seed(seed)
    near = anchors[torch.randint(len(anchors), (count,), generator=generator)]
    return normalize(near + noise * torch.randn(near.shape, generator=generator, dtype=near.dtype), dim=-1)


def cone(known: int = 4, negative: int = 20, dim: int = 8, *, dtype: torch.dtype = torch.float64) -> LabelSpace:
    """Names that are near each other, as text is: logits at tau = 0.01 differ by a few nats only."""
    axis = torch.eye(dim, dtype=dtype)[0]
    rows = normalize(5 * axis + unit(known + negative, dim, seed=1, dtype=dtype), dim=1)
    names = tuple(f"name {i}" for i in range(known + negative))
    return LabelSpace(names[:known], names[known:], rows[:known], rows[known:])


def two_clouds(labels: LabelSpace, count: int, *, seed: int = 3, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Images that lie apart from the text, the unknown around a centre of their own; and which are known."""
    generator = torch.Generator().manual_seed(seed)
    like = labels.id_anchors
    is_known = torch.rand(count, generator=generator) < 0.5
    known = like[torch.randint(len(like), (count,), generator=generator)]
    unknown = like.mean(0) - 0.4 * unit(1, labels.dim, seed=9, dtype=like.dtype)
    noisy = noise * torch.randn(known.shape, generator=generator, dtype=like.dtype) / labels.dim**0.5
    return normalize(torch.where(is_known[:, None], known, unknown) + noisy, dim=1), is_known
