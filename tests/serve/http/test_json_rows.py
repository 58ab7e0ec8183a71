"""Rows of features in JSON are parsed one at a time, wherever they stand in the body, as JSON says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import FeatureError, ServiceError
from unseen.serve.http import json_rows
from unseen.serve.http.json_rows import split_rows

ROWS = st.integers(0, 3).flatmap(
    lambda width: st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=width, max_size=width),
        min_size=1,
        max_size=4,
    )
)
TRICKS = ['"features": [[1]]', '\\"features":[[', "features", '"', "\\", "]", "[[", "{", "ü"]


@given(ROWS, st.lists(st.sampled_from(TRICKS), max_size=3), st.booleans(), st.sampled_from([None, 0, 2]))
def test_rows_and_rest_are_what_json_says(rows, keys, is_first, indent):
    fields = {"features": rows, "keys": keys} if is_first else {"keys": keys, "features": rows}
    found, rest = split_rows(json.dumps(fields, indent=indent).encode(), 10)
    assert np.array_equal(found, np.array(rows, np.float64).reshape(len(rows), -1))
    assert json.loads(rest) == {**fields, "features": None}


@pytest.mark.parametrize(
    "body", [{"features": "AAAA"}, {"features": []}, {"features": None}, {"features": [1.0]}, {"keys": TRICKS}, [], 3]
)
def test_what_has_no_rows_is_left_as_it_is(body):
    text = json.dumps(body).encode()
    assert split_rows(text, 10) == (None, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"features": [[1], ["x"]]}', "features.1.0"),
        (b'{"features": [[1], [true]]}', "features.1.0"),
        (b'{"features": [[1], [1e999]]}', "features.1.0"),
        (b'{"features": [[[1]]]}', "features.0"),
        (b'{"features": [[1', "features.0"),
        (b'{"features": [[1] 2]}', "after a row"),
        (b'{"features": [[1], 2]}', "after a row"),
        (b'{"features": [[1]', "after a row"),
    ],
)
def test_malformed_rows_are_refused_with_their_place(text, message):
    with pytest.raises(ServiceError, match=message):
        split_rows(text, 10)


def test_rows_of_several_widths_or_too_many_are_refused():
    with pytest.raises(FeatureError, match="one width"):
        split_rows(b'{"features": [[1], [1, 2]]}', 10)
    with pytest.raises(ServiceError, match="1 to 2 samples, got 3") as caught:
        split_rows(b'{"features": [[1], [1], [1], [1]]}', 2)
    assert caught.value.status == 413


def test_no_call_of_the_parser_gets_more_than_a_row(monkeypatch):
    parsed, validate = [], json_rows.ROW.validate_json

    class Recorder:
        def validate_json(self, text, **options):
            parsed.append(text)
            return validate(text, **options)

    monkeypatch.setattr(json_rows, "ROW", Recorder())
    split_rows(json.dumps({"features": [[0.5, 1.5]] * 9}).encode(), 10)
    assert parsed == [b"[0.5, 1.5]"] * 9
