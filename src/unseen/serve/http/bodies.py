"""Request bodies of several media types: JSON, raw rows of float32, and forms."""

from __future__ import annotations

import asyncio
import base64
import binascii
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from fastapi import Request
from jaxtyping import Float
from pydantic import BaseModel, ValidationError

from unseen.errors import FeatureError, ServiceError, UnseenError
from unseen.serve.http.auth import header
from unseen.serve.http.binary import ARROW, SAFETENSORS, from_arrow, from_safetensors, unsupported
from unseen.serve.http.forms import Form, parse_form
from unseen.serve.http.json_rows import described, refused_body, split_rows
from unseen.serve.http.schema import Samples
from unseen.serve.settings import Limits
from unseen.serve.stream.config import UNFIT
from unseen.serve.work.time_slices import let_others_run

JSON, RAW, FORM = "application/json", "application/octet-stream", "multipart/form-data"

AT_ONCE = 32 << 10  # bytes of JSON that are parsed on the loop
PART = 64 << 10  # bytes that are looked at between two moments in which other threads may run
KEY_LENGTH = 1024  # characters of an image's key

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class SampleBody(NamedTuple):
    """The samples of a request: features or image files, and what the caller calls them (() for nothing)."""

    features: Float[np.ndarray, "n d"] | None = None
    images: Sequence[bytes] = ()
    keys: Sequence[str | None] = ()

    def __len__(self) -> int:
        return len(self.images) if self.features is None else len(self.features)


def media_type(request: Request) -> str:
    """The media type of a request."""
    return (header(request.scope, b"content-type") or JSON).partition(";")[0].strip().lower()


def parse_json(body: bytes | str, model: type[M]) -> M:
    """JSON text as `model`; refuse it with the first thing that is wrong."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise refused_body(model, described(error)) from error


def check_values(body: bytes, limits: Limits) -> None:
    """Refuse JSON of more bytes or values than are worth parsing, by its size, its commas and brackets alone."""
    if len(body) > limits.json:
        raise ServiceError(
            413,
            f"expected at most {limits.json:,} bytes of JSON, got more; send smaller batches, rows of float32 as {RAW} "
            f"or images as {FORM}",
            "body",
        )
    if has_more_values(body, limits.json_values):
        raise ServiceError(
            413,
            f"expected at most {limits.json_values:,} values in JSON, got more; "
            f"send smaller batches, or rows of float32 as {RAW}",
            "values",
        )


def check_header(file: bytes, most: int) -> None:
    """Refuse a safetensors file with more than `most` values in its header, which is JSON: before it is opened."""
    size = int.from_bytes(file[:8], "little")
    if has_more_values(file, most, start=8, stop=8 + size):
        raise ServiceError(
            413, f"expected at most {most:,} values in the header of a file, got more; leave some out", "values"
        )


def has_more_values(body: bytes, most: int, *, start: int = 0, stop: int | None = None) -> bool:
    """Whether JSON has more commas and brackets than `most`, without counting all of them."""
    found, stop = 0, len(body) if stop is None else min(stop, len(body))
    for at in range(start, stop, PART):
        found += sum(body.count(mark, at, min(at + PART, stop)) for mark in (b",", b"[", b"{"))
        if found > most:
            return True
        let_others_run()
    return False


async def read_json(request: Request, model: type[M], limits: Limits, parsers: Executor) -> M:
    """A body of JSON as `model`; a large one is parsed away from the loop."""

    def parse(body: bytes) -> M:
        check_values(body, limits)
        return parse_json(body, model)

    return await _parsed_json(await request.body(), parse, parsers)


async def _parsed_json(body: bytes, parse: Callable[[bytes], T], parsers: Executor | None) -> T:
    if len(body) <= AT_ONCE:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(parsers, parse, body)


def idempotency_key(request: Request) -> str | None:
    """The key that makes a retry harmless, if there is one."""
    key = header(request.scope, b"idempotency-key")
    if key is not None and not 0 < len(key) <= 256:
        raise ServiceError(422, f"expected an Idempotency-Key of 1 to 256 characters, got {len(key)}; use a UUID")
    return key


async def read_form(request: Request, limits: Limits, parsers: Executor) -> Form:
    """An uploaded form with a bounded number of files."""
    body, media = await request.body(), header(request.scope, b"content-type") or ""
    return await asyncio.get_running_loop().run_in_executor(parsers, parse_form, body, media, limits.batch)


async def read_samples(request: Request, dim: int, limits: Limits, parsers: Executor | None = None) -> SampleBody:
    """The features of a request, or its images as bytes; what is large is parsed by `parsers`."""
    return _checked(await _parsed(request, dim, limits, parsers), limits)


async def _parsed(request: Request, dim: int, limits: Limits, parsers: Executor | None) -> SampleBody:
    """The samples of a request by its media type."""
    media, loop = media_type(request), asyncio.get_running_loop()
    if media == RAW:
        return SampleBody(_rows(await request.body(), dim))
    if media == JSON:
        return await _parsed_json(await request.body(), partial(_from_json, dim, limits), parsers)
    if media == FORM:
        form = header(request.scope, b"content-type") or ""
        return await loop.run_in_executor(parsers, _from_form, await request.body(), form, limits)
    if media == SAFETENSORS:
        return await loop.run_in_executor(parsers, _from_safetensors, await request.body(), limits)
    if media == ARROW:
        features, keys = await loop.run_in_executor(parsers, from_arrow, await request.body(), limits.batch)
        return SampleBody(features, keys=[key and key[:KEY_LENGTH] for key in keys])
    if media.startswith("image/"):
        key = request.query_params.get("key", "")[:KEY_LENGTH]
        return SampleBody(None, [await request.body()], [key] if key else ())
    raise unsupported(media, [JSON, RAW, FORM, SAFETENSORS, ARROW])


def message_samples(content: bytes | str, dim: int, limits: Limits) -> SampleBody:
    """The features in one message: rows of float32, or JSON."""
    if isinstance(content, bytes):
        return _checked(SampleBody(_rows(content, dim)), limits)
    samples = _from_json(dim, limits, content.encode())
    if samples.features is None:
        raise ServiceError(422, "expected features in a message, got images; send them as a request")
    return _checked(samples, limits)


def _checked(samples: SampleBody, limits: Limits) -> SampleBody:
    if not 0 < len(samples) <= limits.batch:
        raise ServiceError(
            413, f"expected 1 to {limits.batch} samples, got {len(samples)}; send smaller batches", "batch"
        )
    if len(samples.keys) not in (0, len(samples)):
        raise ServiceError(422, f"expected {len(samples)} keys, one each, got {len(samples.keys)}; send all or none")
    return samples


@contextmanager
def as_file(data: bytes, limits: Limits) -> Iterator[Path]:
    """Yield uploaded bytes as a safetensors file that we named; errors call it `the upload`."""
    check_header(data, limits.json_values + 2 * (limits.names + limits.negatives))
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        try:
            yield Path(file.name)
        except ServiceError:
            raise
        except UnseenError as error:
            raise ServiceError(422, str(error).replace(file.name, "the upload")) from error
        except KeyError as error:
            raise ServiceError(422, f"expected a file of unseen, got one without {error}; save it again") from error
        except (LookupError, *UNFIT) as error:  # its checksum may be right, and its content anything
            what = str(error)[:200]
            raise ServiceError(422, f"expected a file of unseen, got another ({what}); save it again") from error


def _from_safetensors(body: bytes, limits: Limits) -> SampleBody:
    check_header(body, limits.json_values)
    return SampleBody(from_safetensors(body))


def _from_form(body: bytes, media: str, limits: Limits) -> SampleBody:
    files = parse_form(body, media, limits.batch).files.get("images", [])
    names = [(file.name or "")[:KEY_LENGTH] or None for file in files]
    return SampleBody(None, [file.data for file in files], names)


def _from_json(dim: int, limits: Limits, body: bytes) -> SampleBody:
    check_values(body, limits)
    rows, rest = split_rows(body, limits.batch)
    parsed = parse_json(rest, Samples)
    if sum(one is not None for one in (rows, parsed.features, parsed.images)) != 1:
        raise ServiceError(422, "expected either features or images, got both or neither; send one of them")
    keys = parsed.keys or ()
    if parsed.images is not None:
        images = [_from_base64(f"image {number}", text) for number, text in enumerate(parsed.images)]
        return SampleBody(None, images, keys)
    if isinstance(parsed.features, str):
        return SampleBody(_rows(_from_base64("features", parsed.features), dim), keys=keys)
    return SampleBody(np.empty((0, dim)) if rows is None else rows, keys=keys)


def _from_base64(what: str, text: str) -> bytes:
    code = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return b"".join(_decoded(code))
    except (binascii.Error, ValueError) as error:
        raise ServiceError(422, f"expected base64, got {error} in {what}; encode it again") from error


def _decoded(code: str) -> Iterator[bytes]:
    """Yield what base64 stands for, part by part; only the last may be padded."""
    for start in range(0, len(code), PART):
        let_others_run()
        part = base64.b64decode(code[start : start + PART], validate=True)
        if start + PART < len(code) and len(part) != 3 * PART // 4:
            raise ValueError("padding before the end")
        yield part


def _rows(body: bytes, dim: int) -> Float[np.ndarray, "n d"]:
    if not body or len(body) % (4 * dim):
        raise FeatureError(f"expected rows of {dim} little-endian float32, got {len(body)} bytes; send whole rows")
    return np.frombuffer(body, "<f4").reshape(-1, dim)
