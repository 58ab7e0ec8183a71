import json
import math

import pytest
import typer
from typer.testing import CliRunner

import shelf
from unseen import bench, suites
from unseen.cli.bench import bench as command
from unseen.errors import DataError, SettingError

CHOSEN = ("mcm", "neglabel", "online", bench.ORACLE)


@pytest.fixture
def table(tmp_path):
    return shelf.write(tmp_path)


@pytest.fixture
def suite(table):
    return suites.load(str(table), table.parent)


@pytest.fixture
def cli():
    app = typer.Typer()
    app.command()(command)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def rows_of(suite, path=None, **options):
    runs = bench.grid(suite, **{"chosen": CHOSEN, "orders": ("shuffled",), "seeds": 2} | options)
    return list(bench.resumed(suite, runs, path, version="test"))


def test_a_row_says_what_ran_on_what(suite):
    row = rows_of(suite, chosen=("online",), seeds=1)[0]
    assert row["labels"] == suite.labels.fingerprint
    assert row["settings"] == {"tau": 0.01, "kappa": 0.05, "rho": 0.1, "beta": 0.95}
    assert (row["suite"], row["set"], row["order"], row["seed"], row["version"]) == (
        "toy",
        "near",
        "shuffled",
        0,
        "test",
    )
    assert row["samples"] == 80
    assert row["auroc"] > 0.5


def test_a_killed_run_goes_on_after_its_last_whole_line(suite, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    expected = rows_of(suite, path)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    executed = []
    execute = bench.execute
    monkeypatch.setattr(
        bench, "execute", lambda suite, run, **more: executed.append(run) or execute(suite, run, **more)
    )
    assert rows_of(suite, path) == expected
    assert len(executed) == len(lines) - 3
    assert bench.read(path) == expected  # the torn line did not swallow the one after it
    assert rows_of(suite, path) == expected
    assert len(executed) == len(lines) - 3


def test_another_version_or_label_space_is_computed_again(suite, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows_of(suite, path)
    count = len(path.read_text().splitlines())
    list(bench.resumed(suite, bench.grid(suite, chosen=CHOSEN, orders=("shuffled",), seeds=2), path, version="next"))
    assert len(path.read_text().splitlines()) == 2 * count


def test_unknown_names_are_refused_before_anything_runs(suite):
    with pytest.raises(SettingError, match=r"expected detectors out of .*oracle-online.*\['mcn'\]"):
        rows_of(suite, chosen=("mcm", "mcn"))
    with pytest.raises(SettingError, match="expected an order out of"):
        rows_of(suite, orders=("sideways",))


def test_rows_of_the_oracle_are_marked_and_summed_up_apart(suite):
    rows = bench.summarised(rows_of(suite), metrics=("auroc",))
    assert {row["detector"] for row in rows if not row["label_free"]} == {bench.ORACLE}
    assert {row["detector"] for row in rows if row["label_free"]} == set(CHOSEN) - {bench.ORACLE}


def test_what_is_undefined_is_null_in_a_row_and_nan_in_a_mean(suite):
    row = rows_of(suite, chosen=("mcm",), seeds=1)[0]
    assert row["purity_known"] is None  # mcm routes nobody
    assert math.isnan(bench.mean_and_deviation([row["purity_known"]])[0])
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_mean_and_deviation_by_hand():
    assert bench.mean_and_deviation([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert bench.mean_and_deviation([0.5]) == (0.5, 0.0)


def test_json_is_one_object_per_run(cli, table):
    result = cli(table, "--features", table.parent, "--seeds", 1, "--detectors", "mcm,online", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["set"], row["detector"]) for row in rows] == [
        (name, detector) for name in ("near", "far") for detector in ("mcm", "online")
    ]


def test_tables_keep_label_free_and_oracle_columns_apart(cli, table):
    result = cli(table, "--features", table.parent, "--seeds", 1, "--detectors", ",".join(CHOSEN))
    free, bound = result.stdout.split("upper bound: routes by the truth")
    assert "label-free" in free
    assert "oracle" not in free
    assert "oracle-online" in bound
    assert not {"mcm", "neglabel"} & set(bound.split())


def test_a_second_call_resumes_from_the_folder(cli, table, tmp_path):
    arguments = (
        table,
        "--features",
        table.parent,
        "--seeds",
        1,
        "--detectors",
        "online",
        "-o",
        tmp_path / "out",
        "--json",
    )
    first = cli(*arguments).stdout
    assert (tmp_path / "out" / "toy.jsonl").is_file()
    assert cli(*arguments).stdout == first


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--detectors", "mcn"), SettingError, "expected detectors out of"),
        (("--orders", "sideways"), SettingError, "expected an order out of"),
    ],
)
def test_misuse_is_a_typed_error(cli, table, arguments, error, message):
    with pytest.raises(error, match=message):
        cli(table, "--features", table.parent, "--seeds", 1, *arguments)
    with pytest.raises(DataError, match="expected a suite out of"):
        cli("nosuch", "--features", table.parent)


EVIDENCE = {  # AUROC in percent, mean of seeds 0 to 2: MCM, NegLabel, Algorithm 1, its oracle (docs/reproduction.md)
    "textures10": (91.3, 88.6, 84.1, 99.1),
    "flowers102": (98.5, 95.0, 98.3, 99.8),
}


@pytest.mark.data
@pytest.mark.parametrize("name", EVIDENCE)
def test_the_evidence_is_reproduced(features, name):
    suite = suites.load("imagenet200", features)
    for detector, auroc in zip(CHOSEN, EVIDENCE[name], strict=True):
        runs = [bench.Run(name, "shuffled", seed, detector) for seed in range(3)]
        mean, _ = bench.mean_and_deviation([bench.execute(suite, run, version="test")["auroc"] for run in runs])
        assert 100 * mean == pytest.approx(auroc, abs=0.1)
