"""What every scan returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.odds import Top


class Scan(NamedTuple):
    """How each sample reads the bank right after its own update, and the bank after the last one."""

    read: Top
    bank: Float[Tensor, "C d"]


def joined(reads: list[Top]) -> Top:
    """Return consecutive reads as one."""
    return Top(*(torch.cat(part) for part in zip(*reads, strict=True)))
