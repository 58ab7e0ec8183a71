"""Request bodies of several media types: rows of float32, JSON, and images in forms or alone."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from fastapi import Request
from jaxtyping import Float
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from unseen import LabelSpace
from unseen.errors import FeatureError, ServiceError, UnseenError
from unseen.serve.http.schema import Samples
from unseen.serve.settings import INSIDE, Limits
from unseen.serve.stream.folder import UNFIT

JSON, RAW, FORM = "application/json", "application/octet-stream", "multipart/form-data"

M = TypeVar("M", bound=BaseModel)
Run = Callable[[Callable[[], Any]], Awaitable[Any]]  # runs what is large away from the loop


class SampleBody(NamedTuple):
    """The samples of a request: features or image files, and what the caller calls them (() for nothing)."""

    features: Float[np.ndarray, "n d"] | None = None
    images: Sequence[bytes] = ()
    keys: Sequence[str | None] = ()

    def __len__(self) -> int:
        return len(self.images) if self.features is None else len(self.features)


def media_type(request: Request) -> str:
    """The media type of a request."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


def parse_json(text: str | bytes, model: type[M]) -> M:
    """JSON text as `model`; refuse it with the first thing that is wrong."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        what = f"expected a body like {model.__name__}, got {where}: {first['msg']}"
        raise ServiceError(422, f"{what}; see /docs") from error


def idempotency_key(request: Request) -> str | None:
    """The key that makes a retry harmless, if there is one."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 256:
        raise ServiceError(422, f"expected an Idempotency-Key of 1 to 256 characters, got {len(key)}; use a UUID")
    return key


def form_of(request: Request, limits: Limits) -> AbstractAsyncContextManager[FormData]:
    """An uploaded form with a bounded number of files and texts."""
    return request.form(max_files=limits.batch, max_fields=16, max_part_size=1 << 20)


async def read_samples(request: Request, dim: int, limits: Limits, run: Run) -> SampleBody:
    """The features of a request, or its images as bytes; what is large is parsed by `run`."""
    media = media_type(request)
    if media == RAW:
        samples = SampleBody(_rows(await request.body(), dim))
    elif media == JSON:
        parse = partial(_from_json, await request.body(), dim, limits)
        is_small = len(await request.body()) <= 32 << 10  # others are served meanwhile
        samples = parse() if is_small else await run(parse)
    elif media == FORM:
        async with form_of(request, limits) as form:
            files = [one for one in form.getlist("images") if isinstance(one, UploadFile)]
            names = [(file.filename or "")[: INSIDE.key] or None for file in files]
            samples = SampleBody(None, [await file.read() for file in files], names)
    elif media.startswith("image/"):
        key = request.query_params.get("key", "")[: INSIDE.key]
        samples = SampleBody(None, [await request.body()], [key] if key else ())
    else:
        known = ", ".join((JSON, RAW, FORM))
        raise ServiceError(415, f"expected {known} or image/*, got {media!r}; set Content-Type")
    if not 0 < len(samples) <= limits.batch:
        raise ServiceError(
            413, f"expected 1 to {limits.batch} samples, got {len(samples)}; send smaller batches", "batch"
        )
    if len(samples.keys) not in (0, len(samples)):
        raise ServiceError(422, f"expected {len(samples)} keys, one each, got {len(samples.keys)}; send all or none")
    return samples


def read_space(data: bytes, limits: Limits) -> LabelSpace:
    """An uploaded label space; its checksum may be right, and its content anything."""
    if limits.header < int.from_bytes(data[:8], "little") < len(data):  # which is JSON: before it is opened
        what = f"expected at most {limits.header:,} bytes of header, got more; leave some names out"
        raise ServiceError(413, what, "values")
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        try:
            labels = LabelSpace.load(file.name)
            labels.fingerprint  # noqa: B018 - text that cannot be written has none
        except UnseenError as error:
            raise ServiceError(422, str(error).replace(file.name, "the upload")) from error
        except (LookupError, *UNFIT) as error:
            what = f"expected a label space, got another file ({str(error)[:200]}); save it again"
            raise ServiceError(422, what) from error
    return labels


def _from_json(body: bytes, dim: int, limits: Limits) -> SampleBody:
    if len(body) > limits.json:
        remedy = f"send smaller batches, rows of float32 as {RAW} or images as {FORM}"
        raise ServiceError(413, f"expected at most {limits.json:,} bytes of JSON, got more; {remedy}", "body")
    try:
        parsed = msgspec.json.decode(body, type=Samples)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceError(422, f"expected a body like Samples, got {error}; see /docs") from error
    if (parsed.features is None) == (parsed.images is None):
        raise ServiceError(422, "expected either features or images, got both or neither; send one of them")
    keys = parsed.keys or ()
    if parsed.images is not None:
        images = [_from_base64(f"image {number}", text) for number, text in enumerate(parsed.images)]
        return SampleBody(None, images, keys)
    if isinstance(parsed.features, str):
        return SampleBody(_rows(_from_base64("features", parsed.features), dim), keys=keys)
    rows = parsed.features or []
    if len({len(row) for row in rows}) > 1:
        raise FeatureError("expected features of one width, got rows of several; use one encoder")
    return SampleBody(np.array(rows, np.float64).reshape(len(rows), -1 if rows else dim), keys=keys)


def _from_base64(what: str, text: str) -> bytes:
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServiceError(422, f"expected base64, got {error} in {what}; encode it again") from error


def _rows(body: bytes, dim: int) -> Float[np.ndarray, "n d"]:
    if not body or len(body) % (4 * dim):
        raise FeatureError(f"expected rows of {dim} little-endian float32, got {len(body)} bytes; send whole rows")
    return np.frombuffer(body, "<f4").reshape(-1, dim)
