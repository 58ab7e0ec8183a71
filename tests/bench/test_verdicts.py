"""benchmarks/verdicts.py: its rows, its table and its goals, on a small suite."""

import json

import pytest

import verdicts
from helpers import suite_files
from stored_suites import SUITES, load_suite
from unseen import Session, detectors
from unseen_bench.metrics import auroc, balanced_at_recall

FIELDS = {
    *("suite", "set", "order", "seed", "margin_auroc", "margin_fpr95_id", "kept", "rejected", "balanced"),
    *("best_threshold", "frozen_balanced", "ece"),
}


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """The name of a suite that the benchmark knows."""
    name = str(suite_files.write(tmp_path))
    monkeypatch.setitem(SUITES, name, ("near", "far"))
    monkeypatch.setattr(verdicts, "FROZEN", {"mcm": {}, "neglabel": {}})
    for cached in (verdicts.run, verdicts.suite_scores, load_suite):
        cached.cache_clear()
    return name


def run(suite, tmp_path, monkeypatch, capsys, *options):
    command = ["verdicts.py", str(tmp_path), "--suites", suite, *options]
    monkeypatch.setattr("sys.argv", command)
    verdicts.main()
    return capsys.readouterr().out


def test_a_row_holds_what_a_session_gives_on_its_stream(suite, tmp_path, monkeypatch, capsys):
    out = run(suite, tmp_path, monkeypatch, capsys, "--orders", "id_first", "--json")
    (row,) = [row for row in map(json.loads, out.splitlines()) if row["set"] == "far"]
    assert row.keys() >= FIELDS
    loaded = load_suite(suite, tmp_path, 3000)
    trial = loaded.against("far").ordered("id_first", 0)
    found, is_id = Session(loaded.labels).observe(trial.z), trial.is_id
    assert row["kept"] == pytest.approx(100 * float((~found.unknown[is_id]).double().mean()))
    assert row["margin_auroc"] == pytest.approx(100 * auroc(found.margin[is_id], found.margin[~is_id]))
    scores = [detectors.make(name, loaded.labels).score(None, trial.z).score for name in ("mcm", "neglabel")]
    expected = [100 * balanced_at_recall(score[is_id], score[~is_id]) for score in scores]
    assert row["frozen_balanced"] == pytest.approx(max(expected))


def test_the_table_has_every_order_and_rows_are_not_computed_twice(suite, tmp_path, monkeypatch, capsys):
    options = ("--rows", str(tmp_path / "rows.jsonl"))
    first = run(suite, tmp_path, monkeypatch, capsys, *options)
    assert all(f"| {order} |" in first for order in verdicts.ORDERS)
    assert "AUROC at least the best frozen less 0.5" in first
    monkeypatch.setattr(verdicts, "evaluate", None)
    assert run(suite, tmp_path, monkeypatch, capsys, *options) == first


def test_each_stage_of_each_rotation_is_a_row(suite, tmp_path, monkeypatch, capsys):
    out = run(suite, tmp_path, monkeypatch, capsys, "--orders", "temporal", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
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
    found = list(verdicts.goal_lines(rows))
    assert any(
        line.startswith("NOT MET") and "kept never under 88: 3 of 4 streams; worst -1.00, imagenet200 near" in line
        for line in found
    )
    assert any(line.startswith("NOT MET  AUROC") and "3 of 4 streams" in line for line in found)
    assert any(line.startswith("NOT MET  kept within the interval") and "3 of 4 streams" in line for line in found)
    assert "oracle   20 known images of the stream: 0 of 4 keep 92 to 98, 0 under 88" in found
