import numpy as np
import pytest
import torch

from unseen.errors import DataError
from unseen_bench.metrics import auroc, fpr95_id
from unseen_bench.run.comparison import _weighted_metrics, bootstrap


def scores(seeds=4, known=200, unknown=150, shift=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(seeds, known + unknown, generator=generator)
    drawn[:, :known] += shift
    return drawn


def test_weighted_metrics_are_those_of_repeated_samples():
    generator = np.random.default_rng(0)
    one = np.round(scores(1)[0].double().numpy(), 1)  # with ties
    id_weight, ood_weight = (generator.integers(0, 4, (3, count)).astype(float) for count in (200, 150))
    areas, rates = _weighted_metrics(one, 200, id_weight, ood_weight)
    for r in range(3):
        known = torch.from_numpy(np.repeat(one[:200], id_weight[r].astype(int)))
        unknown = torch.from_numpy(np.repeat(one[200:], ood_weight[r].astype(int)))
        assert areas[r] == pytest.approx(auroc(known, unknown))
        assert rates[r] == pytest.approx(fpr95_id(known, unknown))


def test_a_large_difference_is_found_with_the_sign_of_b():
    a = scores(shift=0.5)
    better = a.clone()
    better[:, :200] += 1
    found = bootstrap(a, better, 200, replicates=100)
    assert found["auroc"].is_difference
    assert found["auroc"].low > 0
    assert found["fpr95_id"].high < 0
    turned = bootstrap(better, a, 200, replicates=100)["auroc"]
    assert turned.mean == pytest.approx(-found["auroc"].mean)


def test_the_interval_covers_zero_in_most_pairs_of_equal_detectors():
    inside = 0
    for seed in range(40):
        a, b = scores(2, 100, 100, seed=seed), scores(2, 100, 100, seed=1000 + seed)  # alike, drawn apart
        interval = bootstrap(a, b, 100, replicates=200, seed=seed)["auroc"]
        inside += not interval.is_difference
    assert inside >= 34


def test_scores_that_cannot_be_paired_are_refused():
    with pytest.raises(DataError, match="one shape"):
        bootstrap(scores(), scores(known=100), 200)
    with pytest.raises(DataError, match="both kinds"):
        bootstrap(scores(), scores(), 350)
