"""What routes by the truth: an upper bound, the authors' released code, and what the label alone gives away."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import suite_files
from helpers.streams import space
from helpers.suite_files import trial_of
from unseen.detectors import Online
from unseen_bench import suites
from unseen_bench.evaluate import evaluate
from unseen_bench.oracles import permuted, run_oracle
from unseen_bench.run import list_runs, run_all
from unseen_bench.trial import Trial

LABELS = space(6, 47, 16)  # of which seven are in no group


def released_by_hand(trial: Trial) -> np.ndarray:
    """The score of every sample, in loops and probabilities."""
    text = [LABELS.id_anchors.double().numpy(), LABELS.ood_anchors.double().numpy()]
    moved, taught, scores = [side.copy() for side in text], [0, 0], []
    for x, is_id in zip(trial.z.double().numpy(), trial.is_id.tolist(), strict=True):
        side = 0 if is_id else 1
        weight = math.sqrt(taught[side] / len(trial.z))
        read = list(text)
        read[side] = weight * moved[side] + (1 - weight) * text[side]
        known, negative = (np.exp(rows @ x / np.linalg.norm(rows, axis=1) / 0.01) for rows in read)
        groups = [negative[start : start + 2] for start in range(0, 40, 2)]
        scores.append(np.mean([known.sum() / (known.sum() + group.sum()) for group in groups]))
        taught[side] += 1
        target, own = (np.exp(rows @ x / t) for rows, t in ((text[side], 0.01), (moved[side], 0.05)))
        pull = np.outer(target / target.sum() - own / own.sum(), x) / 0.05
        moved[side] = moved[side] + 0.1 / math.sqrt(taught[side]) * pull
        moved[side] /= np.linalg.norm(moved[side], axis=1, keepdims=True)
    return np.array(scores)


def test_the_released_code_is_what_its_five_differences_say():
    trial = trial_of(LABELS)
    found = run_oracle("oracle-released", Online(LABELS), trial).output.score.double()
    np.testing.assert_allclose(found.sigmoid(), released_by_hand(trial), atol=1e-9)


def test_an_oracle_routes_every_sample_by_the_truth_and_says_so():
    trial = trial_of(LABELS)
    report = run_oracle("oracle-online", Online(LABELS), trial)
    assert report.detector == "oracle-online"
    assert torch.equal(report.output.route > 0, trial.is_id)
    assert report.metrics["purity_known"] == report.metrics["purity_unknown"] == 1


def test_the_oracle_is_algorithm_1_where_the_gate_is_right():
    """Where the text routes every sample, and rightly, truth and text teach the same."""
    trial = trial_of(LABELS, noise=0.02)
    free = evaluate(Online(LABELS), trial)
    assert free.metrics["coverage_known"] + free.metrics["coverage_unknown"] == 1
    torch.testing.assert_close(free.output.score, run_oracle("oracle-online", Online(LABELS), trial).output.score)


@pytest.mark.data
def test_controls_rank_far_above_chance_where_images_tell_nothing(features: Path):
    """AUROC of the near set: the oracle, and the same by a truth drawn at random, which leaves the label-free at 50."""
    suite = suites.load("imagenet200", features)
    names = ("oracle-online", "oracle-released")
    runs = [run for run in list_runs(suite, names=names, orders=("shuffled",), seeds=1) if run.sets == ("near",)]
    rows = {run.detector: row for run, row in run_all(suite, runs, workers=1)}
    found = {name: 100 * row["auroc"] for name, row in rows.items()}
    for name in names:  # an oracle ranks better, and names known images worse, than frozen text
        assert rows[name]["accuracy"] < rows[name]["accuracy_frozen"] - 0.03
    expected = {"oracle-online": 93.9, "oracle-released": 96.5}
    permutations = {"oracle-online-permuted": 71.3, "oracle-released-permuted": 80.3}
    assert found == pytest.approx(expected | permutations, abs=0.2)
    trial = suite.against("near")
    free = evaluate(Online(suite.labels), permuted(trial[trial.arrival("shuffled", 0)], 0))
    assert 100 * free.metrics["auroc"] == pytest.approx(50, abs=4)
    assert int((free.output.score.sigmoid() == 1).sum()) == pytest.approx(104, abs=3)  # as shares these would tie


def test_every_oracle_stands_beside_its_control(tmp_path):
    suite = suites.load(str(suite_files.write(tmp_path)), tmp_path)
    runs = list_runs(suite, names=("mcm", "oracle-released kappa=0.1"), orders=("shuffled", "id_first"), seeds=2)
    controls = [run for run in runs if "permuted" in run.detector]
    assert {(run.detector, run.order, run.seed) for run in controls} == {
        ("oracle-released-permuted kappa=0.1", order, 0) for order in ("shuffled", "id_first")
    }
    assert [row["kind"] for _, row in run_all(suite, controls, workers=1)] == ["oracle"] * len(controls)
