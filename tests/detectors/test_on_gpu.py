"""Detectors that take another way on a GPU read there as on a CPU."""

from typing import Any

import pytest
import torch

from helpers.streams import space, stream
from unseen import detectors
from unseen_bench.checks import observe_in_parts


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "options"), [("adaneg", {}), ("tanl", {}), ("tanl", {"queue": 20, "top": 50, "window": 200})]
)
def test_a_detector_on_a_gpu_reads_as_on_a_cpu(name: str, options: dict[str, Any]) -> None:
    labels = space(20, 300, 64, dtype=torch.float32)
    z, outputs = stream(labels, 3000, noise=0.3), []
    for place in ("cpu", "cuda"):
        detector = detectors.make(name, labels.to(device=place), **options)
        output, _ = observe_in_parts(detector, z.to(place), [2000, 1, 999])
        outputs.append(output.cpu())
    one, two = outputs
    assert float((two.route == one.route).double().mean()) > 0.995
    assert float((two.score - one.score).abs().median()) < 1e-3
