"""benchmarks/verdicts.py: its rows, its table and its goals, on a small suite."""

import json
import re

import pytest

import verdicts
from helpers import suite_files
from stored_suites import SUITES, load_suite
from unseen import Session, detectors
from unseen_bench.metrics import auroc, balanced_at_recall


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that calls the benchmark on a suite of two sets, and returns what it prints."""
    name = str(suite_files.write(tmp_path))
    monkeypatch.setitem(SUITES, name, ("near", "far"))
    monkeypatch.setattr(verdicts, "FROZEN", {"mcm": {}, "neglabel": {}})
    for cached in (verdicts.run, verdicts.suite_scores, load_suite):
        cached.cache_clear()

    def call(*options):
        monkeypatch.setattr("sys.argv", ["verdicts.py", str(tmp_path), "--suites", name, *map(str, options)])
        verdicts.main()
        return capsys.readouterr().out

    return call


def test_a_row_holds_what_a_session_gives_on_its_stream(run, tmp_path):
    rows = map(json.loads, run("--orders", "id_first", "--json").splitlines())
    (row,) = [row for row in rows if row["set"] == "far"]
    loaded = load_suite(row["suite"], tmp_path, 3000)
    trial = loaded.against("far").ordered("id_first", 0)
    found, is_id = Session(loaded.labels).observe(trial.z), trial.is_id
    assert row["kept"] == pytest.approx(100 * float((~found.unknown[is_id]).double().mean()))
    assert row["margin_auroc"] == pytest.approx(100 * auroc(found.margin[is_id], found.margin[~is_id]))
    scores = [detectors.make(name, loaded.labels).score(None, trial.z).score for name in ("mcm", "neglabel")]
    expected = [100 * balanced_at_recall(score[is_id], score[~is_id]) for score in scores]
    assert row["frozen_balanced"] == pytest.approx(max(expected))


def test_the_table_has_every_order_and_rows_are_not_computed_twice(run, tmp_path, monkeypatch):
    options = ("--rows", tmp_path / "rows.jsonl")
    first = run(*options)
    assert all(f"| {order} |" in first for order in verdicts.ORDERS)
    assert "AUROC at least the best frozen less 0.5" in first
    monkeypatch.setattr(verdicts, "evaluate", None)
    assert run(*options) == first


def test_each_stage_of_each_rotation_is_a_row(run):
    rows = [json.loads(line) for line in run("--orders", "temporal", "--json").splitlines()]
    assert [(row["sets"], row["set"]) for row in rows] == [
        (["near", "far"], "near"),
        (["near", "far"], "far"),
        (["far", "near"], "far"),
        (["far", "near"], "near"),
    ]
    assert [row["kept_first_200"] is None for row in rows] == [False, True, False, True]
    assert {row["known"] for row in rows} == {60}


def goal_row(**changed):
    row = {"suite": "imagenet200", "set": "near", "order": "shuffled", "seed": 0, "sets": ["near"], "ece": 0.04}
    row |= {"margin_auroc": 90, "frozen_auroc": 90, "balanced": 80, "frozen_balanced": 80, "best_threshold": 82}
    row |= {"kept": 95, "accuracy": 80, "accuracy_frozen": 80}
    row |= {"interval": [88, 99], "kept_by_photos": {"20": 91, "50": 94, "100": 95, "200": 95}}
    return row | changed


def test_goals_say_how_many_streams_meet_them_and_which_is_worst():
    rows = [goal_row(), goal_row(kept=87, seed=1), goal_row(margin_auroc=89, seed=2), goal_row(seed=3)]
    found = "\n".join(verdicts.goal_lines(rows))
    assert "kept never under 88: 3 of 4 streams; worst -1.00, imagenet200 near" in found
    for state, goal in (
        ("NOT MET", "AUROC.*3 of 4 streams"),
        ("NOT MET", "kept within the interval.*3 of 4 streams"),
    ):
        assert re.search(f"^{state}  {goal}", found, re.MULTILINE)
    assert "oracle   20 known images of the stream: 0 of 4 keep 92 to 98, 0 under 88" in found
