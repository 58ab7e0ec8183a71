import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from unseen import metrics
from unseen.errors import DataError, SettingError

METRICS = (metrics.auroc, metrics.fpr95_id, metrics.fpr95_ood, metrics.aupr_in, metrics.aupr_out)

# few distinct values, so that nearly every example has ties within and across the sides
sides = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=60).map(torch.tensor)


def reference(id_scores, ood_scores):
    truth = torch.cat([torch.ones(len(id_scores)), torch.zeros(len(ood_scores))]).numpy()
    score = torch.cat([id_scores, ood_scores]).double().numpy()

    def fpr95(truth, score):
        fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
        return float(fpr[(tpr >= 0.95).argmax()])

    return {
        "auroc": roc_auc_score(truth, score),
        "fpr95_id": fpr95(truth, score),
        "fpr95_ood": fpr95(1 - truth, -score),
        "aupr_in": average_precision_score(truth, score),
        "aupr_out": average_precision_score(1 - truth, -score),
    }


@given(sides, sides)
@settings(max_examples=100, deadline=None)
def test_ties_agree_with_scikit_learn(id_scores, ood_scores):
    ours = metrics.summary(id_scores, ood_scores)
    assert ours == pytest.approx(reference(id_scores, ood_scores), abs=1e-12)
    assert ours == {metric.__name__: metric(id_scores, ood_scores) for metric in METRICS}


@pytest.mark.parametrize("count", [20, 60, 100, 1000, 4097])
def test_long_float32_scores_agree_with_scikit_learn(count):
    generator = torch.Generator().manual_seed(count)
    id_scores = torch.randn(count, generator=generator) + 1
    ood_scores = torch.randn(3 * count + 1, generator=generator)
    assert metrics.summary(id_scores, ood_scores) == pytest.approx(reference(id_scores, ood_scores), abs=1e-12)


def test_the_two_conventions_by_hand():
    id_scores = torch.arange(20.0) + 10  # 10 .. 29: 95 % of ID is accepted from 11 on
    ood_scores = torch.tensor([0.0, 5.0, 10.0, 11.0])  # all of OOD is caught only at 11
    assert metrics.fpr95_id(id_scores, ood_scores) == 1 / 4
    assert metrics.fpr95_ood(id_scores, ood_scores) == 2 / 20
    assert metrics.fpr_at_tpr(id_scores, ood_scores, tpr=1.0) == 2 / 4


@given(sides, sides, st.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_threshold_is_the_highest_that_accepts_enough(positive, negative, tpr):
    enough = [t for t in positive.tolist() if (positive >= t).double().mean() >= tpr]
    expected = (negative >= max(enough)).double().mean()
    assert metrics.fpr_at_tpr(positive, negative, tpr=tpr) == pytest.approx(float(expected))


def test_fpr_is_exact_where_float_counts_round_up():
    for count in range(1, 400):
        scores = torch.arange(float(count))
        kept = next(k for k in range(1, count + 1) if k * 100 >= 95 * count)
        assert metrics.fpr95_id(scores, scores) == kept / count


def test_infinite_scores_are_ranked():
    id_scores = torch.tensor([math.inf, 1.0, math.inf])
    ood_scores = torch.tensor([-math.inf, 2.0, math.inf])
    finite = metrics.summary(torch.tensor([9.0, 1.0, 9.0]), torch.tensor([-9.0, 2.0, 9.0]))
    assert metrics.summary(id_scores, ood_scores) == finite


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_one_empty_side_is_undefined(metric, sizes):
    assert math.isnan(metric(torch.zeros(sizes[0]), torch.zeros(sizes[1])))


@pytest.mark.parametrize("metric", [*METRICS, metrics.summary])
def test_nan_is_refused_with_a_count(metric):
    with pytest.raises(DataError, match="2 NaN"):
        metric(torch.zeros(3), torch.tensor([math.nan, 0.0, math.nan]))


def test_wrong_shape_and_wrong_rate_are_refused():
    with pytest.raises(DataError, match=r"shape \[2, 1\]"):
        metrics.auroc(torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(SettingError, match="tpr"):
        metrics.fpr_at_tpr(torch.zeros(2), torch.zeros(2), tpr=0.0)


def test_scores_are_not_written_to():
    scores = torch.tensor([2.0, 1.0, 3.0])
    metrics.summary(scores, scores)
    assert scores.tolist() == [2.0, 1.0, 3.0]
