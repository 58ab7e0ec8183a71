"""Fixtures every test may use: small label spaces, streams that resemble CLIP's, the shared real features."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.scale import cluster

try:
    import hypothesis
except ImportError:  # the GPU's tests do without it: a machine with a GPU may have pytest and no more
    pass
else:
    hypothesis.settings.register_profile("unseen", deadline=None, derandomize=True)  # CI stalls; seeds must not
    hypothesis.settings.load_profile("unseen")
torch.set_num_threads(1)  # the tensors here are too small to share

REPO = Path(__file__).parents[1]


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


@pytest.fixture
def labels() -> LabelSpace:
    return space()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Return a local Ray of two workers, one for all tests that are marked `ray`: starting it takes seconds."""
    with cluster.connect("local", workers=2, memory=128 << 20) as joined:
        yield joined


@pytest.fixture(scope="session")
def features() -> Path:
    """Return the folder of shared CLIP features, or skip."""
    folder = Path(os.environ.get("UNSEEN_FEATURES", REPO.parent / "shared" / "clip-b16"))
    if not folder.is_dir():
        pytest.skip("the shared CLIP features are not here; set UNSEEN_FEATURES to their folder")
    return folder
