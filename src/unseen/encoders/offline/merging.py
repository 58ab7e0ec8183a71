"""Fewer tokens: in each block the most similar tokens become one (token merging, Bolya et al., ICLR 2023).

Tokens are divided in turn into two sets. Each token of the first set has a partner in the second, the one whose key is
most similar; of these pairs the most similar are merged into their mean, weighted by how many patches each stands for.
Attention then counts a token as often as it has patches. The class token is never merged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize


class Tokens(NamedTuple):
    """Tokens, and the number of patches that each stands for; None where each stands for one."""

    x: Float[Tensor, "n t d"]
    size: Float[Tensor, "n t"] | None = None

    def merged(self, keys: Float[Tensor, "n t k"], count: int) -> Tokens:
        """The tokens after `count` merges, or as many as there are pairs; the class token stays the first."""
        size = self.x.new_ones(self.x.shape[:2]) if self.size is None else self.size
        gone, kept, partner = pairs(keys, count)
        parts = torch.cat([self.x, torch.ones_like(size).unsqueeze(-1)], dim=-1) * size.unsqueeze(-1)
        first, second = parts[:, ::2], parts[:, 1::2]
        second = second.scatter_add(1, _rows(partner, parts), first.gather(1, _rows(gone, parts)))
        sums = torch.cat([first.gather(1, _rows(kept, parts)), second], dim=1)
        return Tokens(sums[..., :-1] / sums[..., -1:], sums[..., -1])

    @property
    def log_size(self) -> Float[Tensor, "n t"] | None:
        """What is added to the logits of attention."""
        return None if self.size is None else self.size.log()


def pairs(
    keys: Float[Tensor, "n t k"], count: int
) -> tuple[Int[Tensor, "n r"], Int[Tensor, "n m"], Int[Tensor, "n r"]]:
    """Which tokens of the first set are merged, which stay, and the partners of the merged in the second."""
    keys = normalize(keys.float(), dim=-1)
    likeness = keys[:, ::2] @ keys[:, 1::2].mT
    likeness[:, 0] = -torch.inf  # the class token
    best, partner = likeness.max(-1)
    order = best.argsort(dim=-1, descending=True, stable=True)
    count = min(count, order.shape[1] - 1)
    gone, kept = order[:, :count], order[:, count:].sort(dim=-1).values
    return gone, kept, partner.gather(1, gone)


def _rows(index: Int[Tensor, "n m"], like: Float[Tensor, "n t d"]) -> Int[Tensor, "n m d"]:
    return index.unsqueeze(-1).expand(-1, -1, like.shape[-1])
