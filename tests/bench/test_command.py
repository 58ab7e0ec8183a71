"""What the files in benchmarks/ share: arguments and output."""

import json
import sys

import pytest

from unseen_bench.run import Case, command


@pytest.fixture
def arguments(monkeypatch, tmp_path):
    """A function that parses a command line of a resuming benchmark."""

    def parse(*words):
        monkeypatch.setattr(sys, "argv", ["benchmark", str(tmp_path), *words])
        return command.parse(command.parser("doc", features=True, resumes=True, seeds=2))

    return parse


def test_an_answer_is_a_table_or_one_json_object_per_row(arguments, capsys):
    cases = [Case({"number": i}, lambda i=i: {"square": i * i}) for i in range(2)]
    command.run_and_print(cases, arguments(), lambda rows: [f"{len(rows)} rows"])
    assert capsys.readouterr().out == "2 rows\n"
    command.run_and_print(cases, arguments("--json"), lambda rows: ["unused"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["number"], row["square"]) for row in rows] == [(0, 0), (1, 1)]
