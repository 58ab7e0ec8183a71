"""The paper's loop on one page is the detector `online`, on made-up streams and on real features."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from unseen import LabelSpace, demo, detectors

FILE = Path(__file__).parents[2] / "examples" / "algorithm1.py"


@pytest.fixture(scope="module")
def page() -> Any:
    spec = importlib.util.spec_from_file_location("algorithm1", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_same(page: Any, space: LabelSpace, z: torch.Tensor, *, taught: int) -> None:
    space, z = space.to(dtype=torch.float64), normalize(z.double(), dim=-1)
    detector = detectors.make("algorithm1", space)
    output, _ = detector.observe(detector.start(), z)
    scores = np.array(list(page.algorithm1(z.numpy(), space.id_anchors.numpy(), space.ood_anchors.numpy())))
    assert int((output.route != 0).sum()) >= taught
    np.testing.assert_allclose(scores, output.score.sigmoid().numpy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_detector_on_streams_where_both_sides_teach(page: Any, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    known, negative = (normalize(torch.randn(n, 16, generator=draw), dim=-1) for n in (4, 9))
    centres = torch.cat([known, negative])[torch.randint(13, (60,), generator=draw)]
    z = centres + 0.3 * torch.randn(60, 16, generator=draw)
    space = LabelSpace(tuple("abcd"), tuple("ABCDEFGHI"), known, negative)
    assert_same(page, space, z, taught=20)


def test_it_is_the_detector_on_stored_features(page: Any) -> None:
    pack = demo.load().shuffled(seed=0)[:300]
    assert_same(page, pack.space.with_negatives(300), pack.z, taught=100)
