from __future__ import annotations

import math
import sys

import pytest
import torch

from helpers.streams import stream
from unseen import LabelSpace, Session, Verdicts
from unseen.errors import MissingExtra
from unseen.verdicts import FIELDS, records

KEYS = ["a", "b", "c", "d"]


@pytest.fixture
def verdicts() -> Verdicts:
    score = torch.tensor([3.0, 2.0, 1.0, math.nan])
    route = torch.tensor([1, 0, -1, 0], dtype=torch.int8)
    label, negative = torch.tensor([0, 1, 1, 1]), torch.tensor([0, -1, 1, 0])
    baseline = torch.full((4,), 0.5)
    p_known, warming = torch.tensor([0.9, 0.4, 0.1, math.nan]), torch.tensor([True, False, False, False])
    threshold = torch.tensor([1.0, 1.0, 1.0, math.inf])
    columns = score, label, route, baseline, negative, threshold, p_known, warming
    return Verdicts(("cat", "dog"), ("lynx", "wolf"), *columns)


def test_a_record_has_the_documented_fields_in_order(verdicts):
    first, second, third, last = verdicts.records(KEYS)
    assert tuple(first) == FIELDS
    assert first == {
        "key": "a",
        "verdict": "known",
        "name": "cat",
        "nearest": "cat",
        "margin": 2.5,
        "threshold": 1.0,
        "p_known": pytest.approx(0.9),
        "warming": True,
        "likely": None,
    }
    assert (second["verdict"], second["name"], second["nearest"]) == ("doubtful", "dog", "dog")
    assert (third["verdict"], third["name"], third["nearest"]) == ("unknown", None, "dog")
    assert [one["likely"] for one in (first, second, third)] == [None, None, "wolf"]  # -1: the method has none
    assert (last["margin"], last["threshold"], last["p_known"]) == (None, None, None)


def test_rows_columns_and_formats_hold_the_same_values(verdicts):
    rows = list(verdicts.records(KEYS))
    assert verdicts.columns(KEYS) == {field: [row[field] for row in rows] for field in FIELDS}
    assert list(records(verdicts.structured(), verdicts.names, verdicts.negatives, KEYS)) == rows


def test_a_verdict_has_the_numbers_of_its_record_and_a_reason(verdicts):
    *three, last = verdicts
    for verdict, record in zip(three, verdicts.records(KEYS), strict=False):
        assert verdict._asdict() | {"key": record["key"]} == record
    assert [verdict.why for verdict in three] == [
        "known: cat, 1.5 above the threshold; known with a probability of 90 %, the threshold is young",
        "doubtful: dog, 0.5 above the threshold; known with a probability of 40 %",
        "unknown, perhaps wolf: nearest to dog, but 0.5 below the threshold; known with a probability of 10 %",
    ]
    assert [(verdict.known, verdict.unknown) for verdict in three] == [(True, False), (False, False), (False, True)]
    assert not last.known


def test_every_sample_is_known_doubtful_or_unknown(labels: LabelSpace):
    verdicts = Session(labels).observe(stream(labels, 300))
    masks = torch.stack([verdicts.known, verdicts.doubtful, verdicts.unknown])
    assert bool((masks.sum(0) == 1).all())
    assert list(verdicts.counts.values()) == masks.sum(1).tolist()
    assert sum(one.verdict == "doubtful" for one in verdicts) == verdicts.counts["doubtful"]
    assert bool((verdicts.p_known[verdicts.doubtful] < 0.5).all())
    assert torch.equal(verdicts.unknown, verdicts.margin < verdicts.threshold)


def test_pandas_gets_the_same_columns(verdicts):
    pytest.importorskip("pandas")
    assert tuple(verdicts.to_pandas(KEYS).columns) == FIELDS
    assert tuple(verdicts.to_pandas().columns) == FIELDS[1:]
    assert verdicts.to_pandas(KEYS)["key"].to_list() == KEYS


def test_pandas_that_is_missing_is_named(verdicts, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pandas.*unseen\[tables\]"):
        verdicts.to_pandas(KEYS)
