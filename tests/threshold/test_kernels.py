"""On a GPU distributions are corrected by a kernel; here it runs on a CPU where Triton's interpreter is chosen."""

import pytest
import torch

from helpers.interpreter import interpreted
from helpers.margins import gumbel, normal
from unseen.threshold import Adaptive, mixture, nodes
from unseen.threshold.clear import ClearImages
from unseen.threshold.correction import correct, correct_by_kernel


@interpreted
def test_the_kernel_corrects_as_numpy_does():
    whole = torch.stack([nodes.counts(normal(n, 9, 5)) + nodes.counts(gumbel(2 * n, -4, 3)) for n in (0, 30, 900)])
    # the last recent margins do not fit the history: the unknown side is fitted anew
    recent = torch.stack([whole[0], whole[1] / 2, nodes.counts(gumbel(300, 6, 1))])
    mixed, typical = mixture.expected(whole, ClearImages.none()), mixture.typical_unknown()
    arguments = mixed.known, mixed.unknown, whole, recent, typical
    torch.testing.assert_close(correct_by_kernel(*arguments), correct(*arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [[6000], [1000, 3, 2997, 1500, 500]])
def test_thresholds_on_a_gpu_are_those_of_a_cpu(pieces):
    shuffle = torch.randperm(6000, generator=torch.Generator().manual_seed(0))
    margin = torch.cat([normal(3500, 9, 5), gumbel(2500, -4, 3)])[shuffle].float()
    clarity = torch.rand(6000, generator=torch.Generator().manual_seed(1)) / 4
    rule, results = Adaptive(derives_baseline=True), []
    for device in ("cpu", "cuda"):
        state, decided = rule.start(), []
        for some, clear in zip(margin.split(pieces), clarity.split(pieces), strict=True):
            decisions, state = rule.learn(state, some, clear, device=torch.device(device))
            decided.append(decisions)
        results.append(([torch.cat(column) for column in zip(*decided, strict=True)], state))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
