"""What comes in and what goes out: bodies to tensors, verdicts to JSON, and the models that OpenAPI shows."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import torch
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import Response
from torch import Tensor

from unseen.errors import FeatureError, ServiceError
from unseen.serve.limits import Limits
from unseen.serve.stream import Answer
from unseen.serve.streams import DEFAULT

JSON, RAW, FORM = "application/json", "application/octet-stream", "multipart/form-data"
COLUMNS = ("score", "margin", "confidence", "label", "route", "known", "warming")
MOST = 100_000  # an integer setting becomes memory or time

M = TypeVar("M", bound=BaseModel)
Number = Annotated[int, Field(ge=-MOST, le=MOST)] | Annotated[FiniteFloat, Field(ge=-MOST, le=MOST)]


class Strict(BaseModel):
    """A body without fields that nobody reads."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Samples(Strict):
    """Unit feature vectors, as numbers or as base64 of little-endian float32 rows, or images as base64."""

    features: list[list[FiniteFloat]] | str | None = None
    images: list[str] | None = None


class ThresholdBody(Strict):
    """How the line between known and unknown is drawn."""

    kind: str = Field("adaptive", max_length=64)
    settings: dict[str, Number] = Field(default_factory=dict)


class StreamBody(Strict):
    """A stream to create: from names, from a label space the operator offers, or with one uploaded beside this."""

    names: list[str] | None = None
    negatives: int = Field(10_000, ge=0, le=100_000)
    space: str | None = Field(None, max_length=128)
    name: str = Field("", max_length=128)
    detector: str = Field(DEFAULT, max_length=64)
    settings: dict[str, Number | bool | Annotated[str, Field(max_length=64)]] = Field(default_factory=dict)
    threshold: ThresholdBody = Field(default_factory=lambda: ThresholdBody(kind="adaptive"))


class RestoreBody(Strict):
    """A snapshot to go back to."""

    snapshot: int = Field(ge=0, le=2**62)


async def parsed(request: Request, model: type[M]) -> M:
    """Return a JSON body as `model`."""
    return valid(await request.body(), model)


def valid(body: bytes | str, model: type[M]) -> M:
    """Return JSON text as `model`; refuse it with the first thing that is wrong."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # where a field may be of several kinds, pydantic names the kind as if it were a field
        where = ".".join(str(name) for name in first["loc"] if "[" not in str(name)) or "the body"
        raise ServiceError(
            422, f"expected a body like {model.__name__}, got {where}: {first['msg']}; see /docs"
        ) from error


def kind(request: Request) -> str:
    """Return the media type of a request."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


class Form(NamedTuple):
    """What came in an uploaded form: texts by name, and files as bytes; what a client calls its files is ignored."""

    texts: dict[str, str]
    files: dict[str, list[bytes]]


async def form(request: Request, limits: Limits) -> Form:
    """Return an uploaded form with a bounded number of files."""
    came = Form({}, {})
    async with request.form(max_files=limits.batch, max_fields=16, max_part_size=1 << 20) as parts:
        for name, part in parts.multi_items():
            if isinstance(part, UploadFile):
                came.files.setdefault(name, []).append(await part.read())
            else:
                came.texts[name] = part
    return came


async def samples(request: Request, dim: int, limits: Limits) -> Tensor | list[bytes]:
    """Return the features of a request, or its images as bytes."""
    came: Tensor | list[bytes]
    media = kind(request)
    if media == RAW:
        came = _from_bytes(await request.body(), dim)
    elif media == JSON:
        came = _from_json(await parsed(request, Samples), dim)
    elif media == FORM:
        came = (await form(request, limits)).files.get("images", [])
    else:
        raise ServiceError(415, f"expected {JSON}, {RAW} or {FORM}, got {media!r}; set Content-Type")
    if not 0 < len(came) <= limits.batch:
        raise ServiceError(413, f"expected 1 to {limits.batch} samples, got {len(came)}; send smaller batches")
    return came


def _from_json(body: Samples, dim: int) -> Tensor | list[bytes]:
    if (body.features is None) == (body.images is None):
        raise ServiceError(422, "expected either features or images, got both or neither; send one of them")
    if body.images is not None:
        return [_from_base64(f"image {number}", text) for number, text in enumerate(body.images)]
    if isinstance(body.features, str):
        return _from_bytes(_from_base64("features", body.features), dim)
    rows = body.features or []
    if len({len(row) for row in rows}) > 1:
        raise FeatureError("expected features of one width, got rows of several; use one encoder")
    return torch.tensor(rows, dtype=torch.float64)


def _from_base64(what: str, text: str) -> bytes:
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServiceError(422, f"expected base64, got {error} in {what}; encode it again") from error


def _from_bytes(body: bytes, dim: int) -> Tensor:
    if not body or len(body) % (4 * dim):
        raise FeatureError(
            f"expected rows of {dim} little-endian float32 numbers, got {len(body)} bytes; send whole rows"
        )
    # a copy, because what torch is given must not be read-only
    return torch.from_numpy(np.frombuffer(body, "<f4").astype(np.float32).reshape(-1, dim))


def verdicts(answer: Answer, names: Sequence[str]) -> dict[str, Any]:
    """Return an answer as JSON will show it; samples that were only scored have no number."""
    columns = zip(*(answer.records[name].tolist() for name in COLUMNS), strict=True)
    rows = []
    for number, (score, margin, confidence, label, route, known, warming) in enumerate(columns, answer.first):
        row = {
            "name": names[label] if known else None,
            "known": known,
            "score": finite(score),
            "margin": finite(margin),
            "confidence": confidence,
            "warming": warming,
            "nearest": names[label],
        }
        if answer.first >= 0:
            row.update(seq=number, taught=route)
        rows.append(row)
    return {"verdicts": rows, "line": finite(float(answer.records["threshold"][-1])), "repeated": answer.repeated}


def finite(number: float) -> float | None:
    """Return a number JSON can hold."""
    return number if math.isfinite(number) else None


def dumped(content: Mapping[str, Any]) -> str:
    """Return JSON text."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def answered(text: str, status: int = 200) -> Response:
    """Return JSON text as a response."""
    return Response(text, status_code=status, media_type=JSON)
