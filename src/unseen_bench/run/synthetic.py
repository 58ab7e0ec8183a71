"""A label space and a stream of random unit vectors, for benchmarks of speed and memory."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.labels import LabelSpace


def label_space(known: int, negatives: int, dim: int) -> LabelSpace:
    """A label space of random anchors."""
    anchors = normalize(torch.randn(known + negatives, dim, generator=torch.Generator().manual_seed(0)), dim=-1)
    names = [f"name {i}" for i in range(known + negatives)]
    return LabelSpace(tuple(names[:known]), tuple(names[known:]), anchors[:known], anchors[known:])


def stream(labels: LabelSpace, samples: int, *, seed: int = 1) -> Float[Tensor, "T d"]:
    """Five in six samples near known anchors and one near a negative."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(samples, generator=generator) < 5 / 6
    anchors = torch.where(
        known.unsqueeze(1),
        labels.id_anchors[torch.randint(len(labels.names), (samples,), generator=generator)],
        labels.ood_anchors[torch.randint(len(labels.negatives), (samples,), generator=generator)],
    )
    return near(anchors, generator)


def near(anchors: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "n d"]:
    """One sample near each anchor, at a distance that leaves the gate sure of some and unsure of others."""
    options: dict[str, Any] = {"generator": generator, "device": anchors.device}
    noise = normalize(torch.randn(anchors.shape, **options), dim=-1)
    strength = 0.1 + 0.25 * torch.rand(len(anchors), 1, **options)
    return normalize(strength * anchors + noise, dim=-1)
