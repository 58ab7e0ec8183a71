import json
import math
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from helpers import suite_files
from unseen.detectors import Detector, DetectorOutput, Online
from unseen.detectors.base import Frozen
from unseen.errors import DataError, SettingError
from unseen_bench import run as bench
from unseen_bench import suites
from unseen_bench.metrics import auroc
from unseen_bench.run import Method, ResultFolder, Run, executors, list_runs, run_all, with_sweeps

CHOSEN = ("mcm", "neglabel", "online", "oracle-online")
WITHOUT_CLOCK = ("seconds",)


@dataclass(frozen=True, eq=False)
class Peeking(Frozen):
    """Score a sample by how it compares with its whole batch: what came later counts."""

    name: ClassVar[str] = "peeking"

    def read(self, state, z):
        cosine = z @ self.labels.id_anchors.T
        return DetectorOutput.frozen(cosine.amax(1) - cosine.mean(), cosine.argmax(1))


@dataclass(frozen=True, eq=False)
class LearningOnline(Online):
    """Algorithm 1 under another name, for the cheats to spoil."""

    name: ClassVar[str] = "cheat"


class Lookahead(LearningOnline):
    """Add what only a call as long as the whole stream can give: the short streams of the checks show nothing."""

    def observe(self, state, z):
        output, after = super().observe(state, z)
        return output._replace(score=output.score + (len(z) in (70, 80))), after


class Count(NamedTuple):
    seen: torch.Tensor


class Counting(Detector[Count]):
    """Count the samples; the cheats below use the count."""

    name: ClassVar[str] = "counting"

    def start(self):
        return Count(torch.zeros(()))

    def read(self, state, z):
        return DetectorOutput.frozen(*(z @ self.labels.id_anchors.T).max(1))

    def learn(self, state, z):
        return self.counted(state.seen + torch.arange(len(z)), self.read(state, z)), Count(state.seen + len(z))

    def counted(self, places, output):
        """A reading that knows the places of its samples."""
        return output


class LateLookahead(Counting):
    """Look one sample ahead from sample 300 on, behind all that the short streams of the checks can show."""

    def counted(self, places, output):
        return output._replace(score=torch.where(places < 300, output.score, output.score.roll(-1)))


class TellsByPlace(Counting, Frozen):
    """Claim to learn nothing: where the known ones come first, the place of a sample is the truth."""

    def counted(self, places, output):
        return output._replace(score=-places.to(output.score))


@pytest.fixture
def table(tmp_path):
    return suite_files.write(tmp_path)


@pytest.fixture
def suite(table):
    return suites.load(str(table), table.parent)


def rows_of(suite, results=None, *, workers=1, **options):
    chosen: dict[str, Any] = {"names": CHOSEN, "orders": ("shuffled",), "seeds": 2} | options
    runs = list_runs(suite, **chosen)
    return [row for _, row in run_all(suite, runs, results, workers=workers)]


def timeless(rows):
    return [{name: value for name, value in row.items() if name not in WITHOUT_CLOCK} for row in rows]


def test_a_row_holds_the_run_its_data_and_its_cost(suite):
    row = rows_of(suite, names=("online",), seeds=1)[0]
    assert (row["labels"], row["data"]) == (suite.labels.fingerprint, suite.fingerprint)
    assert row["settings"] == {"tau": 0.01, "kappa": 0.05, "rho": 0.1, "beta": 0.95}
    assert (row["suite"], row["sets"], row["order"], row["seed"]) == ("toy", ["near"], "shuffled", 0)
    assert (row["samples"], row["known"], row["unknown"]) == (80, 60, {"near": 20})
    assert row["by_set"]["near"]["auroc"] == row["auroc"] > 0.5
    assert row["state_bytes"] == 4 * 16 * 36 + 16  # d (K + L) floats and two counters
    assert row["seconds"] > 0
    assert len(row["over_time"]) == 20
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_what_shows_no_verdicts_is_ranked_as_ever_and_has_none(suite):
    """Controls, sweeps and what has no order: most of the time of a short run would be that of the threshold."""
    runs = list_runs(suite, names=("online", "oracle-online"), orders=("shuffled",), seeds=1)
    runs = [run for run in with_sweeps(runs, ["kappa=0.05"]) if run.sets == ("near",)]
    rows = [row for _, row in run_all(suite, runs, workers=1)]
    plain, *rest = rows
    assert plain["kept"] is not None
    assert next(row for row in rest if row["detector"] == "online")["margin_auroc"] == plain["margin_auroc"]
    for row in rest:
        for metrics in (row, row["by_set"]["near"], *row["over_time"]):
            assert metrics["kept"] is metrics["ece"] is None
            assert "margin_auroc" in metrics
        assert bool(row["over_time"]) == (not row["varied"])  # of a sweep no curve over the stream is drawn


def test_a_frozen_detector_runs_once_for_all_orders_and_seeds(suite):
    rows = rows_of(suite, orders=("shuffled", "id_first"), names=("mcm", "online"))
    frozen = [row for row in rows if row["detector"] == "mcm"]
    assert [(row["order"], row["sets"]) for row in frozen] == [("any", ["near"]), ("any", ["far"])]
    assert frozen[0]["purity_known"] is None  # mcm routes nobody
    assert len(rows) == 2 + 2 * 2 * 2
    thinned = rows_of(suite, orders=("mixture",), names=("mcm",))  # here another seed has other samples
    assert [(row["order"], row["seed"]) for row in thinned] == [("mixture", 0), ("mixture", 1)] * 2


def test_a_temporal_stream_holds_every_set_one_after_another(suite):
    rows = rows_of(suite, orders=("temporal",), names=("online",), seeds=1)
    assert [row["sets"] for row in rows] == [["near", "far"], ["far", "near"]]
    # all 60 known images in each of two stages
    assert all(set(row["by_set"]) == {"near", "far"} and row["samples"] == 160 for row in rows)
    assert len(list_runs(suite, names=("online",), orders=("temporal-all",), seeds=1)) == 2


def test_rows_do_not_depend_on_the_number_of_workers(suite, tmp_path):
    alone = rows_of(suite, ResultFolder(tmp_path / "one", "toy"), seeds=1)
    shared = rows_of(suite, ResultFolder(tmp_path / "two", "toy"), workers=2, seeds=1)
    assert timeless(alone) == timeless(shared)
    one, two = (ResultFolder(tmp_path / folder, "toy") for folder in ("one", "two"))
    for row, other in zip(alone, shared, strict=True):
        assert torch.equal(one.samples(row), two.samples(other))


def test_runs_executed_together_have_the_rows_of_runs_executed_one_by_one(suite):
    runs = list_runs(suite, names=CHOSEN, orders=("shuffled", "id_first"), seeds=2)
    alone = [row for _, row in run_all(suite, runs, workers=1)]
    grouped = [row for row, _ in executors.on_device(suite, runs, "cpu")]
    assert timeless(grouped) == timeless(alone)


def test_a_killed_benchmark_resumes_after_its_last_whole_line(suite, tmp_path, monkeypatch):
    results = ResultFolder(tmp_path, "rows")
    expected = rows_of(suite, results)
    lines = results.path.read_text().splitlines(keepends=True)
    results.path.write_text("".join(lines[:3]) + lines[3][: len(lines[3]) // 2])
    executed: list[Run] = []
    execute = vars(executors)["execute"]
    monkeypatch.setattr(executors, "execute", lambda suite, run: executed.append(run) or execute(suite, run))
    assert timeless(rows_of(suite, results)) == timeless(expected)
    assert len(executed) == len(lines) - 3
    assert timeless(bench.read_rows(results.path)) == timeless(expected)  # the torn line swallowed none after it
    rows_of(suite, results)
    assert len(executed) == len(lines) - 3


def test_a_row_without_its_sample_values_is_computed_again(suite, tmp_path):
    results = ResultFolder(tmp_path, "rows")
    row = rows_of(suite, results, names=("mcm",), seeds=1)[0]
    next((tmp_path / "rows").iterdir()).unlink()
    with pytest.raises(DataError, match="expected the margins of a run"):
        [results.samples(row) for row in bench.read_rows(results.path)]
    rows_of(suite, results, names=("mcm",), seeds=1)
    assert len(results.samples(row)) == 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("mcm", "mcn")}, r"expected detectors out of .*oracle-online.*'mcn'"),
        ({"orders": ("sideways",)}, "expected orders out of"),
        ({"names": ("nowhere:Nothing",)}, "expected a detector class at 'nowhere:Nothing'"),
        ({"names": ("pathlib:Path",)}, "expected a subclass of"),
        ({"names": ("neglabel kappa=1",)}, "expected a setting of neglabel out of tau, groups, seed, got 'kappa'"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(suite, options, message):
    with pytest.raises(SettingError, match=message):
        rows_of(suite, **options)


@pytest.mark.parametrize(
    ("cheat", "rule"), [("Peeking", "causal"), ("Lookahead", "length-free"), ("TellsByPlace", "order-free")]
)
@pytest.mark.parametrize("execute", [bench.run_all, partial(executors.on_device, device="cpu")])
def test_a_cheating_detector_is_refused_by_the_name_of_the_rule_it_breaks(suite, cheat, rule, execute):
    runs = list_runs(suite, names=(f"{__name__}:{cheat}",), orders=("shuffled",), seeds=2)
    with pytest.raises(SettingError, match=f"expected a detector that keeps the rule '{rule}' .*:{cheat}: "):
        list(execute(suite, runs) if execute is not bench.run_all else bench.run_all(suite, runs, workers=1))


def test_the_whole_of_the_first_stream_is_read_again_in_other_calls(tmp_path):
    table = suite_files.write(tmp_path, known_images=400)
    long = suites.load(str(table), table.parent)
    with pytest.raises(SettingError, match=r"keeps the rule 'blocking' .*:LateLookahead: "):
        rows_of(long, names=(f"{__name__}:LateLookahead",), seeds=1)


def test_a_sweep_varies_one_setting_of_the_detectors_that_have_it(suite):
    runs = with_sweeps(
        list_runs(suite, names=("mcm", "online"), orders=("shuffled",), seeds=1), ["kappa=0.02,0.2", "rho=0.5"]
    )
    varied = [run for run in runs if run.settings]
    assert {(run.detector, run.settings) for run in varied} == {
        ("online", (("kappa", 0.02),)),
        ("online", (("kappa", 0.2),)),
        ("online", (("rho", 0.5),)),
    }
    row = bench.execute(suite, varied[0]).row
    assert (row["varied"], row["settings"]["kappa"]) == (["kappa"], 0.02)
    with pytest.raises(SettingError, match="expected a setting of one of mcm, online, got 'gamma'"):
        with_sweeps(runs, ["gamma=1"])
    with pytest.raises(SettingError, match="expected a sweep like"):
        with_sweeps(runs, ["kappa=small"])


@pytest.mark.data
def test_rounding_that_learning_amplifies_breaks_no_rule(features: Path):
    suite = suites.load("imagenet200", features)
    for setting in (("kappa", 0.01), ("rho", 0.3)):  # of the first set the whole stream is read twice
        row = bench.execute(suite, Run(("near",), "shuffled", 0, "online", (setting,))).row
        assert row["auroc"] > 0.5


def test_a_method_may_be_named_with_settings_and_stands_in_the_table_by_that_name(suite):
    rows = rows_of(suite, names=("neglabel", "neglabel groups=1", "online beta=0.9"))
    assert {row["detector"] for row in rows} == {"neglabel", "neglabel groups=1", "online beta=0.9"}
    one = next(row for row in rows if row["detector"] == "neglabel groups=1")
    assert (one["settings"]["groups"], one["varied"], one["text"]) == (1, [], "as stored")


def test_settings_of_packaged_suites_exist():
    for name in suites.names():
        for method, settings in suites.read(name).get("settings", {}).items():
            assert set(settings) <= {field.name for field in fields(Method.parse(method).kind)}


def test_a_sweep_that_contains_the_default_value_stores_each_run_once_and_resumes(suite, tmp_path):
    runs = with_sweeps(list_runs(suite, names=("online",), orders=("shuffled",), seeds=1), ["kappa=0.02,0.05,0.2"])
    runs += runs[:1]  # asked for twice, computed once
    for _ in range(2):
        results = ResultFolder(tmp_path, suite.name)
        for run, row in run_all(suite, runs, results, workers=1):
            assert row["varied"] == [name for name, _ in run.settings]
            assert row["settings"]["kappa"] == dict(run.settings).get("kappa", 0.05)
        assert len(results.rows()) == len(results.path.read_text().splitlines()) == len(runs) - 1


def test_rows_of_the_oracle_and_of_fitted_methods_are_marked(suite):
    rows = rows_of(suite, names=(*CHOSEN, "fit-knn"), seeds=1)
    kinds = {row["detector"]: row["kind"] for row in rows}
    oracles = dict.fromkeys(("oracle-online", "oracle-online-permuted"), "oracle")
    assert kinds == dict.fromkeys(CHOSEN[:3], "label-free") | oracles | {"fit-knn": "id-images"}
    assert {row["known"] for row in rows if row["detector"] == "fit-knn"} == {30}  # half of them taught it


def test_a_row_judges_the_margin_and_the_score(suite, tmp_path):
    results = ResultFolder(tmp_path, "rows")
    row = rows_of(suite, results, names=("default",), orders=("id_first",), seeds=1)[0]
    for column, metric in (("margin", "margin_auroc"), ("score", "auroc")):
        values = results.samples(row, column)
        assert row[metric] == pytest.approx(auroc(values[:60], values[60:]), abs=1e-6)
        assert row["by_set"]["near"][metric] == row[metric]
        assert all(metric in point for point in row["over_time"])
    baseline = results.samples(row, "score") - results.samples(row, "margin")
    assert baseline == pytest.approx(math.log(len(suite.labels.names) / len(suite.labels.negatives)), abs=1e-5)


# AUROC in percent on textures10: methods that never learn once, the others as means of seeds 0 to 2
EVIDENCE = {"mcm": (91.3, 1), "neglabel groups=1": (88.6, 1), "online": (84.1, 3), "oracle-online": (99.1, 3)}


@pytest.mark.data
@pytest.mark.parametrize("detector", EVIDENCE)
def test_auroc_on_the_shared_features_is_that_of_the_evidence(features: Path, detector):
    suite, (percent, seeds) = suites.load("imagenet200", features), EVIDENCE[detector]
    runs = [Run(("textures10",), "shuffled", seed, detector) for seed in range(seeds)]
    mean, _ = bench.mean_and_deviation([bench.execute(suite, run).row["auroc"] for run in runs])
    assert 100 * mean == pytest.approx(percent, abs=0.1)
