"""What the files in benchmarks/ share: arguments, output, timing, synthetic streams."""

import json
import sys

import pytest
import torch

from unseen_bench.run import Case, command, synthetic, timing


@pytest.fixture
def arguments(monkeypatch, tmp_path):
    """A function that parses a command line of a resuming benchmark."""

    def parse(*words):
        monkeypatch.setattr(sys, "argv", ["benchmark", str(tmp_path), *words])
        return command.parse(command.parser("doc", features=True, resumes=True, seeds=2))

    return parse


def test_the_shared_options_have_defaults(arguments, tmp_path):
    found = arguments()
    assert (found.folder, found.rows, found.json, found.threads) == (tmp_path, None, False, 1)
    assert list(command.seeds(found)) == [0, 1]
    assert list(command.seeds(arguments("--first-seed", "3", "--seeds", "1"))) == [3]


def test_an_answer_is_a_table_or_one_json_object_per_row(arguments, capsys):
    cases = [Case({"number": i}, lambda i=i: {"square": i * i}) for i in range(2)]
    command.run_and_print(cases, arguments(), lambda rows: [f"{len(rows)} rows"])
    assert capsys.readouterr().out == "2 rows\n"
    command.run_and_print(cases, arguments("--json"), lambda rows: ["unused"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["number"], row["square"]) for row in rows] == [(0, 0), (1, 1)]


def test_rows_without_a_table_are_printed_as_text(arguments, capsys):
    command.show([{"case": "blocked", "seconds": 0.12345, "samples": 3}], arguments())
    assert capsys.readouterr().out.split() == ["blocked", "seconds", "0.1235", "·", "samples", "3"]


def test_the_median_leaves_the_warmup_out():
    ticks = iter([0.0, 9.0, 10.0, 12.0, 20.0, 21.0, 30.0, 33.0])
    assert timing.median_seconds(lambda: None, repeat=3, warmup=1, clock=lambda: next(ticks)) == 2.0


def test_alternating_rounds_give_one_time_per_work_and_round():
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    found = timing.alternating_seconds(works, rounds=2)
    assert order == ["a", "b", "a", "b"]
    assert {name: len(times) for name, times in found.items()} == {"a": 2, "b": 2}


def test_a_synthetic_stream_has_unit_samples_near_both_kinds_of_anchors():
    labels = synthetic.label_space(4, 8, 16)
    z = synthetic.stream(labels, 60)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(60))
    assert torch.equal(z, synthetic.stream(labels, 60))
