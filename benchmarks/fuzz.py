"""Requests that are wrong in one way or another, for attack.py: paths, headers, bodies, images, forms, label spaces."""

from __future__ import annotations

import http.client
import io
import json
import random
import re
import time
from collections import Counter
from contextlib import suppress
from urllib.parse import quote

from PIL import Image

from served import RAW, Service, form

ODD = ["", "\x00", "a" * 5000, "-1", "1e999", "NaN", "null", "[]", "{}", "💥", "../../etc/passwd", "%00", "\r\n\r\n"]
MEDIA = (RAW, "application/json", "application/vnd.apache.arrow.stream", "image/png")
NEW = (b'{"detector": "no"}', b"{", b'{"settings": {"a": 1e400}}', b'{"detector": "mcm"}')
FIELDS = ("features", "images", "keys", "names", "threshold", "settings", "odd")
HEADERS = ("origin", "content-length", "idempotency-key", "authorization", "x-request-id", "last-event-id", "prefer")


def answers(service: Service, stream: str, space: bytes, seconds: float, seed: int) -> Counter[int]:
    """How often each status came back; 0 where the client could not send a request, or the service hung up."""
    choice, found, until = random.Random(seed), Counter[int](), time.monotonic() + seconds
    while time.monotonic() < until:
        status = 0
        with suppress(http.client.HTTPException, OSError, ValueError):
            method, path, body, headers = malformed(choice, stream, space)
            status = service.call(method, path, body, **headers)[0]
        found[status] += 1
    return found


def malformed(choice: random.Random, stream: str, space: bytes) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that is wrong in one way or another: method, path, body and headers."""
    verb = f"{stream}/{choice.choice(['observe', 'score', 'edits'])}"
    match choice.choice(["header", "json", "rows", "picture", "space", "form", "path"]):
        case "header":
            return "POST", verb, b"{}", {choice.choice(HEADERS): choice.choice(ODD)}
        case "json":
            wrong = [[[1e308] * 64], ["x"], {"a": [1] * 50}, choice.choice(ODD), 10**30, True, None, [[]] * 100]
            text = json.dumps({choice.choice(FIELDS): choice.choice(wrong)}).encode()
            text = text[: choice.randrange(len(text) + 1)] if choice.random() < 0.3 else text
            return "POST", choice.choice([verb, "/v1/streams"]), text, {"content-type": "application/json"}
        case "rows":
            body = choice.randbytes(choice.choice([0, 1, 255, 256, 4096, 60_000]))
            return "POST", verb, body, {"content-type": choice.choice(MEDIA)}
        case "picture":
            body, media = form(images=altered(choice, PICTURE))
            return "POST", verb, body, {"content-type": media}
        case "space":
            body, media = form(space=altered(choice, space), stream=choice.choice(NEW))
            return "POST", "/v1/streams", body, {"content-type": media}
        case "form":
            body, media = form(**{f"images{n}": b"q" for n in range(choice.choice([1, 50, 3000]))})
            body = re.sub(rb'"images\d+"', b'"images"', body)
            return "POST", verb, altered(choice, body), {"content-type": choice.choice([media, choice.choice(ODD)])}
        case _:
            method = choice.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
            words = ["v1", "streams", "f" * 16, "jobs", "snapshots", "labels", quote(choice.choice(ODD))]
            return method, "/" + "/".join(choice.choices(words, k=3)), b"", {}


def altered(choice: random.Random, data: bytes) -> bytes:
    """Data with some bytes changed, left out or added."""
    made = bytearray(data)
    for _ in range(choice.randint(1, 4)):
        place = choice.randrange(len(made)) if made else 0
        if choice.random() < 0.5:
            made[place : place + 4] = choice.randbytes(4)
        else:
            del made[place : place + choice.randrange(1, 200)]
    return bytes(made)


def png() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "png")
    return file.getvalue()


PICTURE = png()
