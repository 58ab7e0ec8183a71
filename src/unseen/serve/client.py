"""A small client: the verbs of a stream, retried without learning twice."""

from __future__ import annotations

import base64
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Any

from unseen.errors import MissingExtra, ServiceError
from unseen.features.inputs import vectors
from unseen.images import Batch, Skipped
from unseen.images.decode import read_file
from unseen.images.inputs import as_picture, key_of, split
from unseen.progress import Progress, no_progress
from unseen.storage.remote import location

try:
    import httpx
except ModuleNotFoundError as error:
    raise MissingExtra("httpx", "serve") from error

RAW = {"content-type": "application/octet-stream"}

Record = dict[str, Any]


class Client:
    """A service at `url`, and the stream in it that has an id, or is the only one.

    with Client("http://127.0.0.1:8000") as client:
        client.create(names=["cat", "dog"])
        for verdict in client.observe(["a.jpg", "b.jpg"]):     # or features, as Session.observe takes them
            print(verdict["verdict"], verdict["name"], verdict["p_known"])
    """

    retried = (429, 502, 503, 504, 507)

    def __init__(self, url: str, key: str | None = None, *, retries: int = 5, timeout: float = 30) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self.retries = retries

    def create(
        self,
        file: str | Path | None = None,
        *,
        key: str | None = None,
        progress: Progress = no_progress,
        **wanted: Any,
    ) -> Remote:
        """Create a stream from `names=[...]`, or from a label space file, with the options of POST /v1/streams.

        Waits until the stream is there, however long that takes; with the same `key` a stream is created once.
        """
        body: dict[str, Any] = {"json": wanted}
        if file:
            body = {"files": {"space": Path(file).read_bytes()}, "data": {"stream": dumps(wanted)}}
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        answer = self.ask("POST", "/v1/streams", again=True, headers=headers, **body)
        made = answer.json()
        return Remote(self, made["id"] if answer.status_code != 202 else self._stream_of(made, progress))

    def _stream_of(self, job: Record, progress: Progress) -> str:
        """The id of the stream that a job creates, when it is there."""
        while job["status"] == "running":
            progress(job["done"], job["total"])
            job = self.call("GET", f"/v1/jobs/{job['job']}", params={"wait": 10})
        if job["status"] != "done":
            why = job["error"]["message"] if job["error"] else "expected a stream, got none: cancelled"
            raise ServiceError(409, why)
        return str(job["stream"])

    def stream(self, key: str | None = None) -> Remote:
        """The stream with an id, by default the only one there is."""
        if key is None:
            found = [one["id"] for one in self.streams()]
            if len(found) != 1:
                raise ServiceError(422, f"expected one stream, got {len(found)}; pass stream(ID) or create one")
            key = found[0]
        return Remote(self, key)

    def observe(self, samples: Any, *, keys: Sequence[str] | None = None, key: str | None = None) -> list[Record]:
        """`Remote.observe` of the only stream there is."""
        return self.stream().observe(samples, keys=keys, key=key)

    def score(self, samples: Any, *, keys: Sequence[str] | None = None) -> list[Record]:
        """`Remote.score` of the only stream there is."""
        return self.stream().score(samples, keys=keys)

    def streams(self) -> list[Record]:
        """What there is."""
        return list(self.call("GET", "/v1/streams")["streams"])

    def call(self, method: str, path: str, **content: Any) -> Any:
        """The JSON answer to a request; raise the service's error. What only reads is tried again."""
        return self.ask(method, path, again=method == "GET", **content).json()

    def ask(self, method: str, path: str, *, again: bool = False, **content: Any) -> httpx.Response:
        """The answer to a request, tried a few times when it is harmless to ask `again`."""
        for attempt in range(self.retries + 1):
            last = attempt == self.retries or not again
            try:
                response = self.http.request(method, path, **content)
            except httpx.TransportError:
                if last:
                    raise
            else:
                if response.is_success:
                    return response
                if last or response.status_code not in self.retried:
                    raise _error(response)
            time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1))
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Remote:
    """One stream of a service.

    Edits of its names take `after`, the number of the last edit that you know of (`edit` of `groups()`): where someone
    else has edited the stream since, ServiceError 409 says so and nothing is changed.
    """

    def __init__(self, client: Client, key: str) -> None:
        self.client, self.id, self._path = client, key, f"/v1/streams/{key}"

    def observe(self, samples: Any, *, keys: Sequence[str] | None = None, key: str | None = None) -> list[Record]:
        """Learn from features or images, in any form that `Session.observe` takes, and return a verdict for each.

        An image that cannot be read has `{"key": ..., "skipped": why}` in its place. A retry after a broken connection
        is not learned twice; `key` is the idempotency key of a retry of your own.
        """
        return self._verdicts("observe", samples, keys, {"idempotency-key": key or uuid.uuid4().hex})

    def score(self, samples: Any, *, keys: Sequence[str] | None = None) -> list[Record]:
        """A verdict for each of what `observe` takes, without learning anything."""
        return self._verdicts("score", samples, keys, {})

    def _verdicts(self, verb: str, samples: Any, keys: Sequence[str] | None, headers: dict[str, str]) -> list[Record]:
        body: dict[str, Any]
        if (z := vectors(samples)) is None:
            body = {"files": image_files(samples, keys)}
        elif keys:
            text = base64.b64encode(z.numpy().astype("<f4").tobytes()).decode()
            body = {"json": {"features": text, "keys": list(keys)}}
        else:
            body, headers = {"content": z.numpy().astype("<f4").tobytes()}, {**RAW, **headers}
        answer = self.client.ask("POST", f"{self._path}/{verb}", again=True, headers=headers, **body).json()
        rows = list(answer["verdicts"])
        for one in answer.get("skipped", ()):  # in order, so that each comes to its place
            rows.insert(one["index"], {"key": one["key"], "skipped": one["reason"]})
        return rows

    def info(self) -> Record:
        """Counts, threshold, drift and snapshots."""
        return dict(self.client.call("GET", self._path))

    def state(self, path: str | Path) -> int:
        """Download the state, for `Session.load`, and return how many samples it has seen come by."""
        answer = self.client.ask("GET", f"{self._path}/state", again=True)
        Path(path).write_bytes(answer.content)
        return int(answer.headers["x-unseen-seq"])

    def space(self, path: str | Path) -> None:
        """Download the label space of now, for `LabelSpace.load`: the state needs it."""
        Path(path).write_bytes(self.client.ask("GET", f"{self._path}/space", again=True).content)

    def snapshot(self) -> int:
        """Keep the state as it is and return the snapshot's number."""
        return int(self.client.call("POST", f"{self._path}/snapshots")["snapshot"])

    def snapshots(self) -> list[Record]:
        """The snapshots there are, oldest first."""
        return list(self.info()["snapshots"])

    def restore(self, snapshot: int) -> None:
        """Go back to a snapshot, or to the beginning (0)."""
        self.client.call("POST", f"{self._path}/restore", json={"snapshot": snapshot})

    def reset(self) -> None:
        """Forget everything learned."""
        self.restore(0)

    def delete(self) -> None:
        """Remove the stream."""
        self.client.call("DELETE", self._path)

    def groups(self) -> Record:
        """The groups of unknown samples, and the number of the last edit."""
        return dict(self.client.call("GET", f"{self._path}/groups"))

    def explain(self, seq: int) -> Record:
        """Why a kept sample gets its verdict."""
        return dict(self.client.call("GET", f"{self._path}/explain/{seq}"))

    def promote(
        self,
        name: str,
        *,
        group: int | None = None,
        seq: int | None = None,
        vector: Sequence[float] | None = None,
        after: int | None = None,
    ) -> Record:
        """Make a known name of a group or of one kept sample; `vector` is its text where the service cannot encode."""
        return self._edit("promote", name=name, group=group, seq=seq, vector=vector, after=after)

    def rename(self, name: str, new: str, *, after: int | None = None) -> Record:
        """Call a known name otherwise."""
        return self._edit("rename", name=name, new=new, after=after)

    def retire(self, name: str, *, after: int | None = None) -> Record:
        """Move a known name to the negatives."""
        return self._edit("retire", name=name, after=after)

    def dismiss(self, group: int, *, after: int | None = None) -> Record:
        """Show a group never again."""
        return self._edit("dismiss", group=group, after=after)

    def correct(self, names: Mapping[int, str], *, after: int | None = None) -> Record:
        """Keep what a person says that kept samples show, by sequence number."""
        return self._edit("correct", names={str(seq): name for seq, name in names.items()}, after=after)

    def undo(self, *, after: int | None = None) -> Record:
        """Take back the last edit."""
        return self._edit("undo", after=after)

    def edits(self) -> list[Record]:
        """What people changed, oldest first."""
        return list(self.client.call("GET", f"{self._path}/review")["edits"])

    def review(self) -> list[Record]:
        """The kept samples with their verdicts and what people said."""
        return list(self.client.call("GET", f"{self._path}/review")["samples"])

    def _edit(self, verb: str, **body: Any) -> Record:
        return dict(self.client.call("POST", f"{self._path}/edits", json={"verb": verb, **body}))


def image_files(samples: Any, keys: Sequence[str] | None) -> list[tuple[str, tuple[str, bytes]]]:
    """The files of a form: paths and bytes as they are, pictures that are held in memory as PNG."""
    images = list(samples.rows if isinstance(samples, Batch) else split(samples))
    names = keys or [key_of(one) or str(number) for number, one in enumerate(images)]
    return [("images", (name, _file(one))) for name, one in zip(names, images, strict=True)]


def _file(image: Any) -> bytes:
    if isinstance(image, Skipped):
        return b""  # the service says that it cannot be read
    if isinstance(image, str | Path):
        return read_file(location(image))
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    file = BytesIO()
    as_picture(image).save(file, "PNG")
    return file.getvalue()


def _error(response: httpx.Response) -> ServiceError:
    """The service's error in the words of its answer."""
    try:
        content = response.json()
        return ServiceError(response.status_code, str(content["message"]), str(content.get("code", "")))
    except (ValueError, KeyError, TypeError):
        return ServiceError(response.status_code, response.text[:200])
