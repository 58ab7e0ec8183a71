"""unseen bench: the command."""

import json

import pytest
import torch
from typer.testing import CliRunner

from helpers import suite_files
from unseen.cli import app
from unseen.errors import DataError, SettingError

CHOSEN = ("mcm", "neglabel", "online", "oracle-online")


@pytest.fixture
def table(tmp_path):
    return suite_files.write(tmp_path)


@pytest.fixture
def cli():
    return lambda *args: CliRunner().invoke(app, ["bench", *map(str, args)], catch_exceptions=False)


def test_a_gpu_that_is_not_there_is_refused(cli, table, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingError, match="expected --device cpu, or cuda where torch finds a GPU, got 'cuda'"):
        cli(table, "--features", table.parent, "--device", "cuda")


def test_tables_keep_kinds_in_columns_of_their_own(cli, table, tmp_path):
    names = ",".join((*CHOSEN, "fit-msp"))
    result = cli(table, "--features", table.parent, "--seeds", 1, "--detectors", names, "-o", tmp_path)
    free, rest = result.stdout.split("needs ID images")
    fitted, bound = rest.split("upper bound: routes by the truth")
    assert "oracle" not in free + fitted
    assert "fit-msp" in fitted
    assert not {"mcm", "neglabel", "online"} & set((fitted + bound).split())
    assert "oracle-online" in bound
    assert "\\toprule" in (tmp_path / "toy.tex").read_text()
    assert "needs ID images" in (tmp_path / "toy.html").read_text()
    sections = (tmp_path / "toy.md").read_text().split("### ")[1:]
    assert [sum(name in part for name in ("oracle-online", "fit-msp", "neglabel")) for part in sections] == [1, 1, 1]


def test_a_second_call_resumes_from_the_folder(cli, table, tmp_path):
    arguments = ("--features", table.parent, "--seeds", 1, "--detectors", "online", "--json")
    first = cli(table, *arguments, "-o", tmp_path / "out").stdout
    assert (tmp_path / "out" / "toy.jsonl").is_file()
    assert cli(table, *arguments, "-o", tmp_path / "out").stdout == first


def test_two_detectors_and_two_folders_are_compared(cli, table, tmp_path):
    arguments = ("--features", table.parent, "--seeds", 2, "--detectors", "mcm,online", "--json")
    cli(table, *arguments, "-o", tmp_path / "a")
    cli(table, *arguments, "-o", tmp_path / "b")
    found = [
        json.loads(line) for line in cli("compare", "mcm", "online", "-o", tmp_path / "a", "--json").stdout.splitlines()
    ]
    assert [(row["set"], row["order"], row["seeds"]) for row in found] == [
        ("far", "shuffled", 2),
        ("near", "shuffled", 2),
    ]
    assert list(found[0]["differences"]) == ["margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id"]
    same = cli("compare", tmp_path / "a", tmp_path / "b").stdout
    assert same.count("no difference") == 4 * same.count(" samples)") > 0
    assert max(map(len, same.splitlines())) <= 80
    with pytest.raises(DataError, match="expected runs of 'mcm' and 'tanl' on the same images"):
        cli("compare", "mcm", "tanl", "-o", tmp_path / "a")
    with pytest.raises(SettingError, match="expected results in"):
        cli("compare", "mcm", "online", "-o", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--detectors", "mcn"), "expected detectors out of"),
        (("--data", "."), "expected --features, a folder of feature files, for .*, got both; pass that folder"),
    ],
)
def test_misuse_is_a_typed_error(cli, table, arguments, message):
    with pytest.raises(SettingError, match=message):
        cli(table, "--features", table.parent, "--seeds", 1, *arguments)


def test_a_suite_that_is_not_there_or_reads_something_else_is_refused(cli, table):
    with pytest.raises(DataError, match="expected a suite out of"):
        cli("nosuch", "--features", table.parent)
    with pytest.raises(SettingError, match="reads images; use --data"):
        cli("imagenet", "--features", table.parent)
    with pytest.raises(SettingError, match="expected --data, a folder of images, for imagenet, got none"):
        cli("imagenet")
    with pytest.raises(SettingError, match="expected a suite, got none"):
        cli("--features", table.parent)
