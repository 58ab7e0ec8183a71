import sys
from xml.etree import ElementTree

import pytest

from helpers import suite_files
from unseen.errors import MissingExtra
from unseen_bench import suites
from unseen_bench.exhibits import page, plots, tables
from unseen_bench.exhibits.tables import MetricCell, verdict_tables
from unseen_bench.run import ResultFolder, list_runs, run_all, with_sweeps

CHOSEN = ("mcm", "online", "oracle-online", "fit-knn")
PAPER = """
[paper.mcm]
near = [90.0, 12.5]
average = [91.0, nan]
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A suite with its rows and where their scores are."""
    folder = tmp_path_factory.mktemp("report")
    suite = suites.load(str(suite_files.write(folder, table=suite_files.TABLE + PAPER)), folder)
    shuffled, temporal = (list_runs(suite, names=CHOSEN, orders=(kind,), seeds=2) for kind in ("shuffled", "temporal"))
    runs = [*with_sweeps(shuffled, ["kappa=0.02,0.2"]), *temporal]
    results = ResultFolder(folder / "results", "toy")
    return suite, [row for _, row in run_all(suite, runs, results, workers=1)], results


def test_every_kind_and_order_has_a_table_of_its_own(ran):
    suite, rows, _ = ran
    found = tables.tables(rows, suite)
    assert [(table.kind, table.order) for table in found] == [
        ("label-free", "shuffled"),
        ("label-free", "temporal"),
        ("id-images", "shuffled"),
        ("oracle", "shuffled"),
        ("oracle", "temporal"),
    ]
    assert [line.method for line in found[0].lines] == ["mcm", "mcm", "online"]
    assert [line.method for line in found[1].lines] == ["mcm", "mcm", "online N-F", "online F-N"]
    assert found[0].columns == ("near", "far", "average")


def test_verdicts_have_a_table_per_kind_and_order_and_a_frozen_method_has_what_no_order_moves(ran):
    _, rows, _ = ran
    found = verdict_tables(rows)
    assert [(table.kind, table.title.split("; ")[1]) for table in found] == [
        ("label-free", "order: shuffled"),
        ("label-free", "order: temporal"),
    ]
    lines = {line[0]: dict(zip(found[0].heads, line, strict=True)) for line in found[0].lines}
    assert set(lines) == {"mcm", "online"}
    assert (lines["mcm"]["kept"], lines["mcm"]["ECE, %"]) == ("—", "—")
    assert lines["mcm"]["best threshold"] != "—"
    mine = [100 * r["kept"] for r in rows if (r["detector"], r["order"], r["varied"]) == ("online", "shuffled", [])]
    assert lines["online"]["kept"] == f"{sum(mine) / len(mine):.1f}"


def test_a_cell_is_the_mean_over_seeds_and_an_average_that_of_sets_seed_by_seed(ran):
    suite, rows, _ = ran
    line = tables.tables(rows, suite)[0].lines[2]
    mine = [row for row in rows if row["detector"] == "online" and row["order"] == "shuffled" and not row["varied"]]
    near = [100 * row["auroc"] for row in mine if row["sets"] == ["near"]]
    assert line.cells["near"].auroc == pytest.approx(sum(near) / 2)
    assert line.cells["average"].auroc == pytest.approx(sum(100 * row["auroc"] for row in mine) / 4)
    assert line.seeds == 2
    assert line.accuracy == pytest.approx(sum(100 * row["accuracy"] for row in mine) / 4)
    assert tables.tables(rows, suite)[0].lines[0].cells["near"].auroc_deviation is None  # one run: nothing deviates


def test_printed_figures_of_the_paper_are_on_their_own_line(ran):
    suite, rows, _ = ran
    printed = tables.tables(rows, suite)[0].lines[1]
    assert printed.printed
    assert printed.cells["near"] == MetricCell(90.0, 12.5)
    grid = tables.tables(rows, suite)[0].grid()
    text = grid.markdown()
    assert "| *mcm, as printed* | 90.00 | 12.50 | — | — | 91.00 | — | — | — | — | — |" in text
    assert r"mcm, as printed & 90.00 & 12.50" in grid.latex()


def test_the_page_is_self_contained_and_keeps_kinds_apart(ran, tmp_path):
    suite, rows, results = ran
    path = tmp_path / "report.html"
    page.write(path, suite, [row for row in rows if row["order"] != "temporal"], results)
    text = path.read_text()
    assert "<script" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    for section in ("tables", "margins", "stream", "settings"):
        assert f'<h2 id="{section}">' in text
    parts = text.split("<section ")[1:]
    kinds = [part.split('"')[1] for part in parts]
    for kind, part in zip(kinds, parts, strict=True):
        grid = part.split("</section>")[0]
        assert ("oracle-online" in grid) == (kind == "oracle")
        assert ("fit-knn" in grid) == (kind == "id-images")
    for figure in text.split("<figure ")[1:]:
        kind, body = figure.split('"')[1], figure.split("</figure>")[0]
        assert "oracle-online" not in body or kind == "oracle"
        assert ">online<" not in body or kind == "label-free"


def test_an_undefined_metric_leaves_a_gap_in_the_plot(ran):
    _, rows, _ = ran
    mine = [dict(row) for row in rows if row["detector"] == "online" and row["over_time"]]
    for row in mine:
        row["over_time"] = [{**point, "purity_known": None} for point in row["over_time"]]
    ElementTree.fromstring(plots.over_stream(mine, "purity_known"))
    assert len(plots._mean_over_seeds(mine, "purity_known")[0]) == 0


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"unseen\[plot\]"):
        page.check_plotting()
