import math
from dataclasses import replace

import pytest
import torch

from helpers.methods import ALL
from helpers.suite_files import trial_of
from unseen import Session, detectors
from unseen.detectors import DetectorOutput, NegLabel, Online, PooledEvidence
from unseen.threshold import Adaptive, Fixed
from unseen_bench.evaluate import evaluate, gate_metrics, judge, over_time
from unseen_bench.metrics import auroc, summary


@pytest.fixture
def trial(labels):
    return trial_of(labels)


def other_truths(trial):
    """The same stream with its truth permuted, turned round, and removed."""
    turned = torch.where(trial.is_id, -1, 0)
    order = torch.randperm(len(trial.z), generator=torch.Generator().manual_seed(0))
    return (
        replace(trial, label=trial.label[order], source=trial.source[order]),
        replace(trial, label=turned),
        replace(trial, label=torch.full_like(trial.label, -1)),
    )


ON_VECTORS = sorted(name for name, kind in ALL.items() if not kind.parts)


@pytest.mark.parametrize("name", ON_VECTORS)
def test_permuting_or_removing_the_labels_changes_no_score(labels, trial, name):
    detector = detectors.make(name, labels)
    expected = evaluate(detector, trial).output
    for other in other_truths(trial):
        for column, same in zip(expected, evaluate(detector, other).output, strict=True):
            assert torch.equal(column, same)


def test_metrics_are_those_of_known_against_unknown_scores(labels, trial):
    report = evaluate(NegLabel(labels), trial)
    score, is_id = report.output.score, trial.is_id
    assert summary(score[is_id], score[~is_id]).items() <= report.metrics.items()
    assert set(report.by_source) == {"near", "far"}
    assert report.by_source["far"]["auroc"] == auroc(score[is_id], score[trial.source == 2])
    assert report.metrics["accuracy"] == report.metrics["accuracy_frozen"]  # its text does not move


def test_a_stage_is_judged_by_its_own_samples(labels, trial):
    staged = trial.ordered("temporal", 0, sets=(2, 1))
    report = evaluate(Online(labels), staged)
    for stage, name in enumerate(("far", "near")):
        mine = staged.stage == stage
        margin, is_id = report.output.margin[mine], staged.is_id[mine]
        assert report.by_source[name]["margin_auroc"] == auroc(margin[is_id], margin[~is_id])


def test_verdicts_are_those_that_a_session_gives(labels, trial):
    session = Session(PooledEvidence(labels), Adaptive(0.9))
    report = evaluate(session, trial)
    assert int(session.snapshot.tally.seen) == 0
    verdicts = session.observe(trial.z)
    for one, two in zip(report.verdicts.tensors, verdicts.tensors, strict=True):
        assert torch.equal(one, two)
    known, is_id = ~verdicts.unknown, trial.is_id
    assert report.metrics["kept"] == float(known[is_id].double().mean())
    assert report.metrics["rejected"] == float((~known[~is_id]).double().mean())
    assert report.metrics["balanced"] == (report.metrics["kept"] + report.metrics["rejected"]) / 2
    assert report.metrics["balanced"] <= 1


def test_the_first_verdicts_are_judged_apart(labels):
    trial = trial_of(labels, samples=300)
    report = evaluate(Session(NegLabel(labels), Fixed(0.0)), trial)
    early = evaluate(Session(NegLabel(labels), Fixed(0.0)), trial[torch.arange(200)])
    assert report.metrics["kept_first_200"] == early.metrics["kept"]
    assert report.metrics["rejected_first_200"] == early.metrics["rejected"]


def test_gate_metrics_by_hand():
    route = torch.tensor([1, 1, -1, 0, -1, 0, 0, 1], dtype=torch.int8)
    is_id = torch.tensor([True, False, False, True, True, True, False, True])
    output = DetectorOutput.of(torch.zeros(8), torch.zeros(8, dtype=torch.int64), route)
    assert gate_metrics(output, is_id) == {
        "coverage_known": 3 / 8,
        "coverage_unknown": 2 / 8,
        "purity_known": 2 / 3,
        "purity_unknown": 1 / 2,
    }
    silent = gate_metrics(output._replace(route=torch.zeros_like(route)), is_id)
    assert math.isnan(silent["purity_known"])  # nobody was routed, so nobody was right


def test_over_time_cuts_the_stream_into_slices_that_cover_it(labels, trial):
    report = evaluate(Online(labels), trial)
    slices = over_time(report, points=5)
    assert [part["samples"] for part in slices] == [24, 48, 72, 96, 120]
    first = judge(Online(labels), DetectorOutput(*(column[:24] for column in report.output)), trial[torch.arange(24)])
    for metric in ("auroc", "kept", "ece", "coverage_unknown"):
        assert slices[0][metric] == first.metrics[metric]
    mean = sum(part["coverage_known"] for part in slices) / 5
    assert mean == pytest.approx(report.metrics["coverage_known"])
