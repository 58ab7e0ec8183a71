"""Uploaded forms, cut at their boundaries: a thousand small files cost hardly more than one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from python_multipart.multipart import parse_options_header

from unseen.errors import ServiceError
from unseen.serve.work.time_slices import let_others_run

FIELDS, TEXT = 16, 1 << 20  # texts in a form, and bytes of one
HEADER = 8 << 10  # bytes before the content of a part
BOUNDARY = 70  # characters (RFC 2046)
# what nearly every client sends as the header of a file; any other is read by the rules of RFC 7578
USUAL = re.compile(
    rb'\r\ncontent-disposition: form-data; name="([^"\\\r\n]*)"; filename="([^"\\\r\n]*)"'
    rb"(?:\r\ncontent-type: [^\r\n]*)?",
    re.IGNORECASE,
)


class UploadedFile(NamedTuple):
    """A file of a form; the name is only ever shown back to the client."""

    name: str | None
    data: bytes


class Form(NamedTuple):
    """An uploaded form: texts by name, and files by name with what the client calls them."""

    texts: dict[str, str]
    files: dict[str, list[UploadedFile]]


def parse_form(body: bytes, content_type: str, most: int) -> Form:
    """A form of `most` files at most (RFC 7578)."""
    form, count, texts = Form({}, {}), 0, 0
    for header, content in _parts(body, _boundary(content_type)):
        let_others_run()
        options = _disposition(header)
        if b"name" not in options:
            raise _refused("a part without a name")
        name = _text(options[b"name"])
        if b"filename" in options:
            count += 1
            form.files.setdefault(name, []).append(UploadedFile(_text(options[b"filename"]), content))
        else:
            texts += 1  # of one name too: each is parsed
            form.texts[name] = _text(content)
        if count > most:
            raise ServiceError(413, f"expected 1 to {most} files, got more; send smaller batches", "batch")
        if texts > FIELDS or (len(content) > TEXT and b"filename" not in options):
            raise _refused(f"more than {FIELDS} texts or one of more than {TEXT:,} bytes")
    return form


def _boundary(content_type: str) -> bytes:
    found: bytes = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(found) <= BOUNDARY:
        raise _refused("no boundary")
    return b"--" + found


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the header and the content of each part."""
    if not body.startswith(boundary):
        raise _refused("another boundary")
    at = len(boundary)
    while not body.startswith(b"--", at):
        end = body.find(b"\r\n" + boundary, at)
        header = body.find(b"\r\n\r\n", at, min(end, at + HEADER))
        if end < 0 or header < 0:
            raise _refused("part of it")
        yield body[at:header], body[header + 4 : end]
        at = end + 2 + len(boundary)


def _disposition(header: bytes) -> dict[bytes, bytes]:
    """The options of the header Content-Disposition."""
    if usual := USUAL.fullmatch(header):
        return {b"name": usual[1], b"filename": usual[2]}
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            options: dict[bytes, bytes] = parse_options_header(value.strip())[1]
            return options
    return {}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _refused(got: str) -> ServiceError:
    return ServiceError(400, f"expected a whole form (multipart/form-data), got {got}; send it again")
