import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import typer
from typer.testing import CliRunner

from helpers import suite_files as shelf
from unseen import bench, suites
from unseen.bench import Results, Run, grid, outcomes, swept
from unseen.bench import pool as pool_module
from unseen.cli.bench import bench as command
from unseen.detectors import Reading
from unseen.detectors.frozen import Frozen
from unseen.errors import DataError, SettingError

CHOSEN = ("mcm", "neglabel", "online", bench.ORACLE)
WITHOUT_CLOCK = ("seconds",)


@dataclass(frozen=True, eq=False)
class Peeking(Frozen):
    """Score a sample by how it compares with its whole batch: what came later counts."""

    name: ClassVar[str] = "peeking"

    def read(self, state, z):
        cosine = z @ self.labels.id_anchors.T
        return Reading.frozen(cosine.amax(1) - cosine.mean(), cosine.argmax(1))


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


def rows_of(suite, results=None, *, workers=1, **options):
    chosen: dict[str, Any] = {"chosen": CHOSEN, "orders": ("shuffled",), "seeds": 2} | options
    runs = grid(suite, **chosen)
    return [row for _, row in outcomes(suite, runs, results, workers=workers)]


def timeless(rows):
    return [{name: value for name, value in row.items() if name not in WITHOUT_CLOCK} for row in rows]


def test_a_row_says_what_ran_on_what_and_what_it_cost(suite):
    row = rows_of(suite, chosen=("online",), seeds=1)[0]
    assert (row["labels"], row["data"]) == (suite.labels.fingerprint, suite.fingerprint)
    assert row["settings"] == {"tau": 0.01, "kappa": 0.05, "rho": 0.1, "beta": 0.95}
    assert (row["suite"], row["sets"], row["order"], row["seed"]) == ("toy", ["near"], "shuffled", 0)
    assert (row["samples"], row["known"], row["unknown"]) == (80, 60, {"near": 20})
    assert row["by_set"]["near"]["auroc"] == row["auroc"] > 0.5
    assert row["state_bytes"] == 4 * 16 * 36 + 16  # d (K + L) floats and two counters
    assert row["seconds"] > 0
    assert len(row["over_time"]) == 20
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_what_never_learns_runs_once_for_all_orders_and_seeds(suite):
    rows = rows_of(suite, orders=("shuffled", "id_first"), chosen=("mcm", "online"))
    assert [(row["detector"], row["order"], row["sets"]) for row in rows if row["detector"] == "mcm"] == [
        ("mcm", "any", ["near"]),
        ("mcm", "any", ["far"]),
    ]
    assert len([row for row in rows if row["detector"] == "online"]) == 2 * 2 * 2
    thinned = rows_of(suite, orders=("mixture",), chosen=("mcm",))  # here another seed has other samples
    assert [(row["order"], row["seed"]) for row in thinned] == [("mixture", 0), ("mixture", 1)] * 2


def test_a_temporal_stream_holds_every_set_in_turn_and_is_never_reset(suite):
    rows = rows_of(suite, orders=("temporal",), chosen=("online",), seeds=1)
    assert [row["sets"] for row in rows] == [["near", "far"], ["far", "near"]]
    assert all(set(row["by_set"]) == {"near", "far"} and row["samples"] == 100 for row in rows)
    assert len(grid(suite, chosen=("online",), orders=("temporal-all",), seeds=1)) == 2


def test_rows_do_not_depend_on_the_number_of_workers(suite, tmp_path):
    alone = rows_of(suite, Results(tmp_path / "one", "toy"), seeds=1)
    shared = rows_of(suite, Results(tmp_path / "two", "toy"), workers=2, seeds=1)
    assert timeless(alone) == timeless(shared)
    one, two = (Results(tmp_path / folder, "toy") for folder in ("one", "two"))
    for row, other in zip(alone, shared, strict=True):
        assert torch.equal(one.scores(row), two.scores(other))


def test_runs_in_one_go_have_the_rows_of_runs_by_themselves(suite):
    runs = grid(suite, chosen=("mcm", "online", "neglabel", bench.ORACLE), orders=("shuffled", "id_first"), seeds=2)
    alone = [row for _, row in outcomes(suite, runs, workers=1)]
    grouped = [row for row, _ in pool_module._grouped(suite, runs, "cpu")]
    assert timeless(grouped) == timeless(alone)


def test_a_row_of_another_device_is_another_row(suite):
    run = grid(suite, chosen=("online",), orders=("shuffled",), seeds=1)[0]
    assert bench.identity(suite, run, device="cuda") == {**bench.identity(suite, run), "device": "cuda"}


def test_a_gpu_that_is_not_there_is_refused(cli, table, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingError, match="expected --device cpu, or cuda where torch finds a GPU, got 'cuda'"):
        cli(table, "--features", table.parent, "--device", "cuda")


def test_a_killed_run_goes_on_after_its_last_whole_line(suite, tmp_path, monkeypatch):
    results = Results(tmp_path, "rows")
    expected = rows_of(suite, results)
    lines = results.path.read_text().splitlines(keepends=True)
    results.path.write_text("".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    executed: list = []
    execute = vars(pool_module)["execute"]
    monkeypatch.setattr(pool_module, "execute", lambda suite, run: executed.append(run) or execute(suite, run))
    assert timeless(rows_of(suite, results)) == timeless(expected)
    assert len(executed) == len(lines) - 3
    assert timeless(bench.read(results.path)) == timeless(expected)  # the torn line swallowed none after it
    rows_of(suite, results)
    assert len(executed) == len(lines) - 3


def test_a_row_without_its_scores_is_computed_again(suite, tmp_path):
    results = Results(tmp_path, "rows")
    row = rows_of(suite, results, chosen=("mcm",), seeds=1)[0]
    next((tmp_path / "rows").iterdir()).unlink()
    with pytest.raises(DataError, match="expected the scores of a run"):
        [results.scores(row) for row in bench.read(results.path)]
    rows_of(suite, results, chosen=("mcm",), seeds=1)
    assert len(results.scores(row)) == 80


def test_scores_are_kept_in_the_order_of_the_suite_not_of_arrival(suite, tmp_path):
    results = Results(tmp_path, "rows")
    one, two = (results.scores(row) for row in rows_of(suite, results, chosen=("neglabel",), orders=("mixture",))[:2])
    here = one.isfinite() & two.isfinite()
    assert 0 < int(here.sum()) < len(here)  # a mixture leaves samples out
    torch.testing.assert_close(one[here], two[here])


def test_unknown_names_are_refused_before_anything_runs(suite):
    with pytest.raises(SettingError, match=r"expected detectors out of .*oracle-online.*'mcn'"):
        rows_of(suite, chosen=("mcm", "mcn"))
    with pytest.raises(SettingError, match="expected orders out of"):
        rows_of(suite, orders=("sideways",))
    with pytest.raises(SettingError, match="expected a detector class at 'nowhere:Nothing'"):
        rows_of(suite, chosen=("nowhere:Nothing",))
    with pytest.raises(SettingError, match="expected a subclass of"):
        rows_of(suite, chosen=("pathlib:Path",))


def test_a_detector_that_looks_ahead_is_refused(suite):
    with pytest.raises(SettingError, match=f"expected a causal detector, got {__name__}:Peeking"):
        rows_of(suite, chosen=(f"{__name__}:Peeking",))


def test_a_sweep_varies_one_setting_of_the_detectors_that_have_it(suite):
    runs = swept(grid(suite, chosen=("mcm", "online"), orders=("shuffled",), seeds=1), ["kappa=0.02,0.2", "rho=0.5"])
    varied = [run for run in runs if run.settings]
    assert {(run.detector, run.settings) for run in varied} == {
        ("online", (("kappa", 0.02),)),
        ("online", (("kappa", 0.2),)),
        ("online", (("rho", 0.5),)),
    }
    row = bench.execute(suite, varied[0]).row
    assert (row["varied"], row["settings"]["kappa"]) == (["kappa"], 0.02)
    with pytest.raises(SettingError, match="expected a setting of one of mcm, online, got 'gamma'"):
        swept(runs, ["gamma=1"])
    with pytest.raises(SettingError, match="expected a sweep like"):
        swept(runs, ["kappa=small"])


def test_a_sweep_through_the_default_gives_every_run_its_own_row_and_resumes(suite, tmp_path):
    runs = swept(grid(suite, chosen=("online",), orders=("shuffled",), seeds=1), ["kappa=0.02,0.05,0.2"])
    runs += runs[:1]  # asked for twice, computed once
    for _ in range(2):
        results = Results(tmp_path, suite.name)
        for run, row in outcomes(suite, runs, results, workers=1):
            assert row["varied"] == [name for name, _ in run.settings]
            assert row["settings"]["kappa"] == dict(run.settings).get("kappa", 0.05)
        assert len(results.done()) == len(results.path.read_text().splitlines()) == len(runs) - 1


def test_rows_of_the_oracle_and_of_fitted_methods_are_marked(suite):
    rows = rows_of(suite, chosen=(*CHOSEN, "fit-knn"), seeds=1)
    kinds = {row["detector"]: row["kind"] for row in rows}
    assert kinds == dict.fromkeys(CHOSEN[:3], "label-free") | {"oracle-online": "oracle", "fit-knn": "id-images"}
    assert {row["known"] for row in rows if row["detector"] == "fit-knn"} == {30}  # half of them taught it


def test_what_is_undefined_is_null_in_a_row_and_nan_in_a_mean(suite):
    row = rows_of(suite, chosen=("mcm",), seeds=1)[0]
    assert row["purity_known"] is None  # mcm routes nobody
    assert math.isnan(bench.mean_and_deviation([row["purity_known"]])[0])


def test_mean_and_deviation_by_hand(suite):
    assert bench.mean_and_deviation([1.0, 3.0]) == pytest.approx((2.0, 2**0.5))
    assert bench.mean_and_deviation([0.5]) == (0.5, 0.0)
    summary = bench.summarised(rows_of(suite, chosen=("online",)), metrics=("auroc", "accuracy"))
    assert [(row["set"], row["seeds"]) for row in summary] == [("near", 2), ("far", 2)]


def test_json_is_one_object_per_run(cli, table):
    result = cli(table, "--features", table.parent, "--seeds", 1, "--detectors", "mcm,online", "--json", "--workers", 1)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["sets"], row["detector"]) for row in rows] == [
        ([name], detector) for name in ("near", "far") for detector in ("mcm", "online")
    ]


def test_tables_keep_kinds_in_columns_of_their_own(cli, table, tmp_path):
    names = ",".join((*CHOSEN, "fit-msp"))
    result = cli(table, "--features", table.parent, "--seeds", 1, "--detectors", names, "--workers", 1, "-o", tmp_path)
    free, rest = result.stdout.split("needs ID images")
    fitted, bound = rest.split("upper bound: routes by the truth")
    assert "oracle" not in free + fitted
    assert "fit-msp" in fitted
    assert not {"mcm", "neglabel", "online"} & set((fitted + bound).split())
    assert "oracle-online" in bound
    assert "\\toprule" in (tmp_path / "toy.tex").read_text()
    sections = (tmp_path / "toy.md").read_text().split("### ")[1:]
    assert [sum(name in part for name in ("oracle-online", "fit-msp", "neglabel")) for part in sections] == [1, 1, 1]


def test_a_second_call_resumes_from_the_folder(cli, table, tmp_path):
    arguments = ("--features", table.parent, "--seeds", 1, "--detectors", "online", "--workers", 1, "--json")
    first = cli(table, *arguments, "-o", tmp_path / "out").stdout
    assert (tmp_path / "out" / "toy.jsonl").is_file()
    assert cli(table, *arguments, "-o", tmp_path / "out").stdout == first


def test_two_detectors_and_two_folders_are_compared(cli, table, tmp_path):
    arguments = ("--features", table.parent, "--seeds", 2, "--detectors", "mcm,online", "--workers", 1, "--json")
    cli(table, *arguments, "-o", tmp_path / "a")
    cli(table, *arguments, "-o", tmp_path / "b")
    found = [
        json.loads(line)
        for line in cli("--compare", "mcm", "online", "-o", tmp_path / "a", "--json").stdout.splitlines()
    ]
    assert [(row["set"], row["order"], row["seeds"]) for row in found] == [
        ("far", "shuffled", 2),
        ("near", "shuffled", 2),
    ]
    same = cli("--compare", tmp_path / "a", tmp_path / "b").stdout
    assert same.count("no difference") == 2 * same.count("seeds,") > 0
    with pytest.raises(DataError, match="expected runs of 'mcm' and 'tanl' on the same images"):
        cli("--compare", "mcm", "tanl", "-o", tmp_path / "a")
    with pytest.raises(SettingError, match="expected results in"):
        cli("--compare", "mcm", "online", "-o", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--detectors", "mcn"), "expected detectors out of"),
        (("--orders", "sideways"), "expected orders out of"),
        (("--report", "report.html"), "expected -o with --report"),
        (("--data", "."), "expected --features or --data"),
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
    with pytest.raises(SettingError, match="expected a suite out of"):
        cli("--features", table.parent)


EVIDENCE = {  # AUROC in percent, mean of seeds 0 to 2: MCM, NegLabel, Algorithm 1, its oracle (docs/reproduction.md)
    "textures10": (91.3, 88.6, 84.1, 99.1),
    "flowers102": (98.5, 95.0, 98.3, 99.8),
}


@pytest.mark.data
@pytest.mark.parametrize("name", EVIDENCE)
def test_the_evidence_is_reproduced(features: Path, name):
    suite = suites.load("imagenet200", features)
    for detector, auroc in zip(CHOSEN, EVIDENCE[name], strict=True):
        runs = [Run((name,), "shuffled", seed, detector) for seed in range(3)]
        mean, _ = bench.mean_and_deviation([bench.execute(suite, run).row["auroc"] for run in runs])
        assert 100 * mean == pytest.approx(auroc, abs=0.1)
