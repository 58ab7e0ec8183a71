"""What a recorded graph computes in fixed places is what the rule computes; here its kernels are interpreted."""

import pytest
import torch

from helpers.interpreter import interpreted
from helpers.margins import gumbel, normal
from unseen.threshold import Adaptive
from unseen.threshold.history import Steps, flat_parts
from unseen.threshold.recorded import LearningGraph

SAMPLES = 12_000  # more than one graph holds: 64 updates of 128 samples and 80 earlier ones
PIECES = [[SAMPLES], [200, 150, 129, 9000, 2521], [5000, 128, 6872]]


def stream():
    """Margins and clarity of a stream whose unknown images change in the middle."""
    generator = torch.Generator().manual_seed(0)
    half = SAMPLES // 2
    parts = [torch.cat([normal(half // 2, 9, 5), gumbel(half // 2, mean, 3)]) for mean in (-4, 5)]
    margin = torch.cat([part[torch.randperm(half, generator=generator)] for part in parts]).float()
    return margin, torch.rand(SAMPLES, generator=generator) / 4


@interpreted
@pytest.mark.parametrize("pieces", PIECES)
def test_a_graph_decides_and_learns_as_the_rule_does(pieces):
    margin, clarity = stream()
    rule = Adaptive(derives_baseline=True)
    graph, state, learned = LearningGraph(torch.device("cpu"), rule.recall, rule.every), rule.start(), rule.start()
    for some, clear in zip(margin.split(pieces), clarity.split(pieces), strict=True):
        decisions, state = rule.learn(state, some, clear)
        found, learned = rule._learn_counted(learned, some, clear, graph)
        torch.testing.assert_close(found, decisions, rtol=1e-4, atol=1e-4)
    assert (int(learned.seen), int(learned.waiting)) == (int(state.seen), int(state.waiting))
    torch.testing.assert_close(learned.pending, state.pending)
    torch.testing.assert_close(flat_parts(learned), flat_parts(state), rtol=1e-4, atol=1e-4)


def test_samples_are_divided_after_updates_and_the_last_part_has_the_rest():
    steps = Steps(2050, [2176, 2304, 2432, 2560], 2600)
    assert list(steps.parts(3)) == [Steps(2050, [2176, 2304, 2432], 2432), Steps(2432, [2560], 2600)]
    assert list(steps.parts(2))[1] == Steps(2304, [2432, 2560], 2600)


def test_updates_come_at_counts_of_the_stream():
    rule = Adaptive(derives_baseline=True)
    assert rule._updates(0, 18) == [*range(1, 17), 18]
    assert rule._updates(16, 17) == []
    assert rule._updates(5000, 5300) == [5120, 5248]
