from __future__ import annotations

import csv
import io
import json
import math
import sys

import pytest
import torch

from helpers.streams import stream
from unseen import LabelSpace, Session, Verdicts
from unseen.detectors import DetectorOutput
from unseen.errors import MissingExtra
from unseen.threshold import Decisions
from unseen.verdicts import FIELDS, VERDICT_DTYPE, records

KEYS = ["a", "b", "c"]


@pytest.fixture
def verdicts() -> Verdicts:
    score = torch.tensor([3.0, 1.0, math.nan])
    output = DetectorOutput(
        score, torch.tensor([0, 1, 1]), torch.tensor([1, -1, 0], dtype=torch.int8), torch.full((3,), 0.5), score
    )
    decisions = Decisions(torch.tensor([1.0, 1.0, math.inf]), torch.sigmoid(score), torch.tensor([True, False, False]))
    return Verdicts(("cat", "dog"), output, decisions)


def test_a_record_has_the_documented_fields_in_order(verdicts):
    first, second, third = verdicts.records(KEYS)
    assert tuple(first) == FIELDS
    assert first == {
        "key": "a",
        "verdict": "known",
        "name": "cat",
        "nearest": "cat",
        "margin": 2.5,
        "threshold": 1.0,
        "p_known": pytest.approx(0.9526, abs=1e-4),
        "warming": True,
    }
    assert (second["verdict"], second["name"], second["nearest"]) == ("unknown", None, "dog")
    assert (third["margin"], third["threshold"], third["p_known"]) == (None, None, None)


def test_rows_columns_and_formats_hold_the_same_values(verdicts):
    rows = list(verdicts.records(KEYS))
    assert [json.loads(line) for line in verdicts.json_lines(KEYS)] == rows
    assert verdicts.columns(KEYS) == {field: [row[field] for row in rows] for field in FIELDS}
    file = io.StringIO()
    verdicts.csv(file, KEYS)
    table = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["margin"] for row in table] == ["2.5", "0.5", ""]
    verdicts.csv(file, ["=1.jpg", *KEYS[1:]])
    assert "\n'=1.jpg,known" in file.getvalue()
    assert list(records(verdicts.structured(), verdicts.names, KEYS)) == rows


def test_a_verdict_has_the_numbers_of_its_record(verdicts):
    verdict = verdicts[1]
    assert verdict._asdict() == {
        "name": None,
        "known": False,
        "margin": 0.5,
        "p_known": verdicts.p_known[1].item(),
        "nearest": "dog",
        "threshold": 1.0,
        "warming": False,
    }


def test_the_structured_array_holds_every_number(verdicts):
    table = verdicts.structured()
    assert table.dtype == VERDICT_DTYPE
    assert table["score"].tolist()[:2] == [3.0, 1.0]
    assert table["route"].tolist() == [1, -1, 0]
    assert table["known"].tolist() == [True, False, False]


def test_joined_parts_are_the_whole(labels: LabelSpace):
    z, session = stream(labels, 50), Session(labels)
    parts = [session.score(part) for part in z.split(17)]
    assert list(Verdicts.joined(parts)) == [verdict for part in parts for verdict in part]


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_table_library_gets_the_same_columns(verdicts, kind):
    pytest.importorskip({"arrow": "pyarrow"}.get(kind, kind))
    table, bare = getattr(verdicts, f"to_{kind}")(KEYS), getattr(verdicts, f"to_{kind}")()
    names, others = ((one.column_names if kind == "arrow" else list(one.columns)) for one in (table, bare))
    assert tuple(names) == FIELDS
    assert tuple(others) == FIELDS[1:]
    assert table["key"].to_list() == KEYS if kind == "pandas" else table["key"].to_pylist() == KEYS


@pytest.mark.parametrize(("kind", "package"), [("arrow", "pyarrow"), ("pandas", "pandas")])
def test_a_table_library_that_is_missing_is_named(verdicts, kind, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*unseen\[tables\]"):
        getattr(verdicts, f"to_{kind}")(KEYS)


def test_columns_need_no_keys(verdicts):
    assert verdicts.verdict == ["known", "unknown", "unknown"]
    assert verdicts.name == [one.name for one in verdicts]
    assert verdicts.columns().keys() == set(FIELDS) - {"key"}
