"""Detectors that take another way on a GPU read there as on a CPU."""

import pytest
import torch

from helpers.streams import space, stream
from unseen.detectors import DetectorOutput
from unseen_bench.methods.zeroshot.adaneg import AdaNeg
from unseen_bench.methods.zeroshot.tanl import TANL


@pytest.mark.gpu
def test_adaneg_on_a_gpu_reads_as_on_a_cpu():
    labels = space(20, 300, 64, dtype=torch.float32)
    z, results = stream(labels, 3000), []
    for place in ("cpu", "cuda"):
        detector = AdaNeg(labels.to(device=place))
        state, outputs = detector.start(), []
        for part in z.to(place).split([2000, 1000]):
            output, state = detector.observe(state, part)
            outputs.append(output.cpu())
        results.append((DetectorOutput.joined(outputs), (state.rows >= 0).sum(1).cpu()))
    (one, slots), (two, same) = results
    torch.testing.assert_close(two.score, one.score, rtol=1e-3, atol=1e-2)
    assert float((two.route == one.route).double().mean()) > 0.999
    assert float((slots == same).double().mean()) > 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"queue": 20, "top": 50, "window": 200}])
def test_tanl_on_a_gpu_reads_as_on_a_cpu(options):
    labels = space(20, 300, 64, dtype=torch.float32)
    z, results = stream(labels, 3000, noise=0.3), []
    for place in ("cpu", "cuda"):
        detector = TANL(labels.to(device=place), **options)
        state, outputs = detector.start(), []
        for part in z.to(place).split([2500, 1, 499]):
            output, state = detector.observe(state, part)
            outputs.append(output.cpu())
        results.append((DetectorOutput.joined(outputs), state.seen.cpu(), state.total.cpu()))
    (one, seen, total), (two, same, sums) = results
    assert float((two.route == one.route).double().mean()) > 0.995
    assert float((two.score - one.score).abs().median()) < 1e-3
    assert float((seen - same).abs().max()) <= 10
    torch.testing.assert_close(sums.sum(1), total.sum(1), rtol=1e-2, atol=1e-3)
