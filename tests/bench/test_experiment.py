"""Experiments of cases: a key and the job that computes its row."""

import math

import pytest

from unseen_bench.run import Case, grouped, mean, results, run_experiment


@pytest.fixture
def counted():
    """A function that makes cases and a list of the keys whose job was run."""
    done = []

    def job(number):
        done.append(number)
        return {"square": number**2, "undefined": math.nan}

    return lambda count: [Case({"number": i, "set": "ab"[i % 2]}, lambda i=i: job(i)) for i in range(count)], done


def test_an_experiment_resumes_with_the_cases_that_the_file_does_not_have(counted, tmp_path):
    cases, done = counted
    first = list(run_experiment(cases(2), tmp_path / "rows.jsonl"))
    again = list(run_experiment(cases(4), tmp_path / "rows.jsonl"))
    assert again[:2] == first
    assert done == [0, 1, 2, 3]


def test_rows_of_other_code_are_computed_again(counted, tmp_path, monkeypatch):
    cases, done = counted
    list(run_experiment(cases(1), tmp_path / "rows.jsonl"))
    monkeypatch.setattr(results, "code_version", lambda: "other")
    list(run_experiment(cases(1), tmp_path / "rows.jsonl"))
    assert done == [0, 0]


def test_rows_are_grouped_by_fields_and_averaged_where_defined(counted):
    cases, _ = counted
    groups = grouped(run_experiment(cases(4)), "set")
    assert {key: mean(rows, "square") for key, rows in groups.items()} == {("a",): 2.0, ("b",): 5.0}
    assert math.isnan(mean(groups["a",], "undefined"))
