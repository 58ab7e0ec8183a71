"""Every installed detector by name, its class imported; what their formulas share."""

import torch
from torch import Tensor

from unseen import detectors

ALL = {name: detectors.find(name) for name in detectors.names()}


def shares(known: Tensor, negative: Tensor, members: Tensor, tau: float) -> Tensor:
    """The mean over groups of the known names' share of the softmax."""
    e, n = (known / tau).exp().sum(-1), (negative / tau).exp()
    return torch.stack([e / (e + n[..., group].sum(-1)) for group in members]).mean(0)
