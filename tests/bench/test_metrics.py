import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from unseen.errors import DataError, SettingError
from unseen_bench import metrics

METRICS = (metrics.auroc, metrics.fpr95_id, metrics.fpr95_ood)
OF_THRESHOLDS = (metrics.best_balanced, metrics.balanced_at_recall)

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
    assert ours.items() >= {metric.__name__: metric(id_scores, ood_scores) for metric in METRICS}.items()


def test_the_two_conventions_by_hand():
    id_scores = torch.arange(20.0) + 10  # 10 .. 29: 95 % of ID is accepted from 11 on
    ood_scores = torch.tensor([0.0, 5.0, 10.0, 11.0])  # all of OOD is caught only at 11
    assert metrics.fpr95_id(id_scores, ood_scores) == 1 / 4
    assert metrics.fpr95_ood(id_scores, ood_scores) == 2 / 20


@given(sides, sides)
@settings(max_examples=100, deadline=None)
def test_the_best_threshold_is_the_best_of_all_thresholds(id_scores, ood_scores):
    known, unknown = id_scores.tolist(), ood_scores.tolist()

    def at(threshold):
        kept = sum(score >= threshold for score in known) / len(known)
        rejected = sum(score < threshold for score in unknown) / len(unknown)
        return (kept + rejected) / 2

    best = metrics.best_balanced(id_scores, ood_scores)
    assert best == pytest.approx(max(map(at, [*known, *unknown, math.inf])), abs=1e-12)
    assert best >= max(0.5, metrics.balanced_at_recall(id_scores, ood_scores)) - 1e-12


@given(sides, sides, st.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_balanced_accuracy_at_a_recall_is_that_of_the_highest_threshold_that_keeps_enough(
    id_scores, ood_scores, recall
):
    known, unknown = id_scores.tolist(), ood_scores.tolist()
    shares = {t: sum(score >= t for score in known) / len(known) for t in known}
    threshold = max(t for t, kept in shares.items() if kept >= recall)
    rejected = sum(score < threshold for score in unknown) / len(unknown)
    expected = (shares[threshold] + rejected) / 2
    assert metrics.balanced_at_recall(id_scores, ood_scores, recall=recall) == pytest.approx(expected, abs=1e-12)


p_known = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@given(p_known, st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_the_calibration_error_agrees_with_a_loop_over_samples(samples, bins):
    members: dict[int, list[tuple[float, bool]]] = {}
    for p_known, known in samples:
        members.setdefault(min(int(p_known * bins), bins - 1), []).append((p_known, known))
    expected = sum(abs(sum(c for c, _ in one) - sum(k for _, k in one)) for one in members.values()) / len(samples)
    p_known = torch.tensor([one for one, _ in samples], dtype=torch.float64)
    found = metrics.reliability(p_known, torch.tensor([known for _, known in samples]), bins=bins)
    assert len(found) == bins
    assert {i: one.samples for i, one in enumerate(found) if one.samples} == {i: len(one) for i, one in members.items()}
    assert metrics.calibration_error(found) == pytest.approx(expected, abs=1e-6)


def test_a_confidence_outside_its_range_is_refused():
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(DataError, match="confidences from 0 to 1"):
            metrics.reliability(torch.tensor([0.5, wrong]), torch.tensor([True, False]))


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


@pytest.mark.parametrize("metric", [*METRICS, *OF_THRESHOLDS])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_one_empty_side_is_undefined(metric, sizes):
    assert math.isnan(metric(torch.zeros(sizes[0]), torch.zeros(sizes[1])))


@pytest.mark.parametrize("metric", [*METRICS, *OF_THRESHOLDS, metrics.summary])
def test_nan_is_refused_with_a_count(metric):
    with pytest.raises(DataError, match="2 NaN"):
        metric(torch.zeros(3), torch.tensor([math.nan, 0.0, math.nan]))


def test_wrong_shape_and_wrong_rate_are_refused():
    with pytest.raises(DataError, match=r"shape \[2, 1\]"):
        metrics.auroc(torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(SettingError, match="recall"):
        metrics.balanced_at_recall(torch.zeros(2), torch.zeros(2), recall=95)
