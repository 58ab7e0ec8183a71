import pytest
import torch

from helpers.streams import unit
from unseen_bench.trial import Trial


@pytest.fixture
def trial():
    """Four known samples of two classes and two samples of each of two unknown sets."""
    label = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])
    source = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    return Trial(unit(8, 4), label, source, ("known", "near", "far"))


@pytest.mark.parametrize("kind", ["shuffled", "id_first", "ood_first", "bursts"])
def test_an_order_moves_features_and_truth_together(trial, kind):
    ordered = trial.ordered(kind, seed=1)
    assert sorted(map(tuple, ordered.z.tolist())) == sorted(map(tuple, trial.z.tolist()))
    for z, label, source in zip(ordered.z, ordered.label, ordered.source, strict=True):
        row = int((trial.z == z).all(1).nonzero())
        assert (label, source) == (trial.label[row], trial.source[row])


def test_a_temporal_shift_is_over_sets_and_a_long_tail_over_classes(trial):
    staged = trial.ordered("temporal", seed=0, sets=(2, 1))
    assert staged.stage.tolist() == [0] * 6 + [1] * 6
    assert staged.source[~staged.is_id].tolist() == [2, 2, 1, 1]
    assert staged[torch.arange(5, 8)].stage.tolist() == [0, 1, 1]
    tail = trial.ordered("long_tail", seed=0, ratio=2.0)
    assert sorted(tail.label[tail.is_id].bincount().tolist()) == [1, 2]
