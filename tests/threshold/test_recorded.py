"""What a recorded graph computes in fixed places is what the rule computes; here without a GPU, unrecorded."""

import pytest
import torch

from helpers.margins import gumbel, normal
from unseen.threshold import Adaptive
from unseen.threshold.history import Steps, flat_parts
from unseen.threshold.recorded import UPDATES, LearningGraph

SAMPLES = 12_000  # more than one graph holds: 64 updates of 128 samples and 80 earlier ones
PIECES = [[SAMPLES], [200, 150, 129, 9000, 2521], [5000, 128, 6872]]


def stream():
    """Return margins and clarity of a stream whose unknown images change in the middle."""
    generator = torch.Generator().manual_seed(0)
    half = SAMPLES // 2
    parts = [torch.cat([normal(half // 2, 9, 5), gumbel(half // 2, mean, 3)]) for mean in (-4, 5)]
    margin = torch.cat([part[torch.randperm(half, generator=generator)] for part in parts]).float()
    return margin, torch.rand(SAMPLES, generator=generator) / 4


@pytest.mark.parametrize("pieces", PIECES)
def test_a_graph_decides_and_learns_as_the_rule_does(pieces):
    margin, clarity = stream()
    rule = Adaptive(derives_baseline=True)
    graph, state, learned = LearningGraph(torch.device("cpu"), rule.recall, rule.every), rule.start(), rule.start()
    for some, clear in zip(margin.split(pieces), clarity.split(pieces), strict=True):
        decisions, state = rule.learn(state, some, clear)
        steps = Steps(list(rule._steps(int(learned.seen), len(some))))
        columns = torch.stack([some.double(), clear.double()], dim=1)
        decided, learned = graph.learn(learned, columns, steps)
        torch.testing.assert_close(decided.float(), torch.stack(decisions[:2]), rtol=1e-5, atol=1e-5)
    assert (int(learned.seen), int(learned.waiting)) == (int(state.seen), int(state.waiting))
    torch.testing.assert_close(learned.pending, state.pending)
    torch.testing.assert_close(flat_parts(learned), flat_parts(state), rtol=1e-5, atol=1e-5)


def test_steps_are_divided_between_updates_and_the_last_part_has_the_rest():
    rule = Adaptive(derives_baseline=True)
    steps = Steps(list(rule._steps(2048, 128 * 2 * UPDATES + 5)))
    parts = list(steps.parts(UPDATES))
    assert [len(part.ends) for part in parts] == [UPDATES, UPDATES]
    assert [part.rows.stop - part.rows.start for part in parts] == [128 * UPDATES, 128 * UPDATES + 5]
    assert [step for part in parts for step in part.all] == steps.all
