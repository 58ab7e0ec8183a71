"""The rows of `features` in JSON, parsed one at a time: while JSON is parsed no other thread runs Python."""

import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from pydantic import TypeAdapter, ValidationError

from unseen.errors import FeatureError, ServiceError
from unseen.serve.http.schema import Row, Samples
from unseen.serve.work.time_slices import let_others_run

KEY = b'"features"'
ROWS = re.compile(rb"\s*:\s*(\[)\s*(?=\[)")
NEXT = re.compile(rb"\s*,\s*(?=\[)")
END = re.compile(rb"\s*\]")
ROW = TypeAdapter(Row)


class JsonRows(NamedTuple):
    """The rows of a body, None where it has none, and the body with null in their place."""

    features: Float[np.ndarray, "n d"] | None
    rest: bytes


def split_rows(body: bytes, most: int) -> JsonRows:
    """The rows of `features`, and what else there is; what is no list of rows is left to whoever parses that."""
    start = _start(body)
    if start is None:
        return JsonRows(None, body)
    rows: list[Float[np.ndarray, " d"]] = []
    more: re.Match[bytes] | None = start
    while more:
        let_others_run()
        end = body.find(b"]", more.end()) + 1 or len(body)
        rows.append(_row(body[more.end() : end], len(rows)))
        if len(rows) > most:
            raise ServiceError(
                413, f"expected 1 to {most} samples, got {len(rows)} or more; send smaller ones", "batch"
            )
        more = NEXT.match(body, end)
    close = END.match(body, end)
    if close is None:
        raise refused_body(Samples, "features: expected , or ] after a row")
    if len({len(row) for row in rows}) > 1:
        raise FeatureError("expected features of one width, got rows of several; use one encoder")
    return JsonRows(np.stack(rows), body[: start.start(1)] + b"null" + body[close.end() :])


def _start(body: bytes) -> re.Match[bytes] | None:
    """Where the rows begin: a quote inside a string has a backslash before it, so this is a key."""
    at = body.find(KEY)
    while at >= 0:
        found = ROWS.match(body, at + len(KEY))
        if found and body[at - 1 : at] != b"\\":
            return found
        at = body.find(KEY, at + 1)
    return None


def _row(text: bytes, number: int) -> Float[np.ndarray, " d"]:
    try:
        return np.array(ROW.validate_json(text, strict=True), np.float64)
    except ValidationError as error:
        raise refused_body(Samples, described(error, "features", number)) from error


def refused_body(model: type, what: str) -> ServiceError:
    """The error for a body that is not as `model` describes it."""
    return ServiceError(422, f"expected a body like {model.__name__}, got {what}; see /docs")


def described(error: ValidationError, *within: str | int) -> str:
    """The first thing that is wrong and where it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    # where a field may be of several kinds, pydantic names the kind as if it were a field
    where = ".".join(str(name) for name in (*within, *first["loc"]) if "[" not in str(name)) or "the body"
    return f"{where}: {first['msg']}"
