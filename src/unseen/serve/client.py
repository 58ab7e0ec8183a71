"""A small client: the verbs of a stream, retried without learning twice."""

from __future__ import annotations

import random
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor

from unseen.errors import MissingExtra, ServiceError
from unseen.features import load_features
from unseen.progress import Progress, no_progress
from unseen.serve.client_edits import RemoteEdits

try:
    import httpx
except ModuleNotFoundError as error:
    raise MissingExtra("httpx", "serve") from error

RAW = {"content-type": "application/octet-stream"}
RETRIED = (429, 502, 503, 504, 507)
WAIT = 10  # seconds that one look at a job may take

Features = Tensor | np.ndarray[Any, Any] | Sequence[Sequence[float]]


class Client:
    """A service at `url`.

    with Client("http://127.0.0.1:8000") as service:
        stream = service.create(names=["cat", "dog"])
        for verdict in stream.observe(features):
            print(verdict["verdict"], verdict["name"], verdict["p_known"])
    """

    def __init__(self, url: str, key: str | None = None, *, retries: int = 5, timeout: float = 30) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self.retries = retries

    def create(
        self,
        file: str | Path | None = None,
        *,
        examples: str | Path | None = None,
        key: str | None = None,
        progress: Progress = no_progress,
        **wanted: Any,
    ) -> Remote:
        """Create a stream from `names=[...]`, or from a label space file, with the options of POST /v1/streams.

        `examples` is what `unseen encode` wrote for a folder per class, or a file of labelled features. Waits until the
        stream is there, however long that takes; with the same `key` a stream is created once.
        """
        files = {"space": Path(file).read_bytes()} if file else {}
        files |= {"examples": example_file(Path(examples))} if examples else {}
        body: dict[str, Any] = {"files": files, "data": {"stream": dumps(wanted)}} if files else {"json": wanted}
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        answer = self.ask("POST", "/v1/streams", again=True, headers=headers, **body)
        made = answer.json()
        return Remote(self, made["id"] if answer.status_code != 202 else self._stream_of(made, progress))

    def _stream_of(self, job: dict[str, Any], progress: Progress) -> str:
        """The id of the stream that a job creates, when it is there."""
        while job["status"] == "running":
            progress(job["done"], job["total"])
            job = self.call("GET", f"/v1/jobs/{job['job']}", params={"wait": WAIT})
        if job["status"] != "done":
            raise ServiceError(
                409, job["error"]["message"] if job["error"] else "expected a stream, got none: cancelled"
            )
        return str(job["stream"])

    def stream(self, key: str) -> Remote:
        """The stream with an id."""
        return Remote(self, key)

    def streams(self) -> list[dict[str, Any]]:
        """What there is, page by page."""
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            page = self.call("GET", "/v1/streams", params={"after": after} if after else {})
            found, after = [*found, *page["streams"]], page.get("next")
        return found

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
                if last or response.status_code not in RETRIED:
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


class Remote(RemoteEdits):
    """One stream of a service."""

    client: Client

    def __init__(self, client: Client, key: str) -> None:
        self.client, self.id, self._path = client, key, f"/v1/streams/{key}"

    def observe(self, features: Features, *, key: str | None = None) -> list[dict[str, Any]]:
        """Learn from features and return a verdict for each; a retry after a broken connection is not learned twice."""
        headers = {**RAW, "idempotency-key": key or uuid.uuid4().hex}
        answer = self.client.ask("POST", f"{self._path}/observe", again=True, content=_bytes(features), headers=headers)
        return list(answer.json()["verdicts"])

    def score(self, features: Features) -> list[dict[str, Any]]:
        """A verdict for each without learning anything."""
        path = f"{self._path}/score"
        return list(self.client.ask("POST", path, again=True, content=_bytes(features), headers=RAW).json()["verdicts"])

    def observe_images(
        self, images: Sequence[bytes], *, keys: Sequence[str] | None = None, key: str | None = None
    ) -> list[dict[str, Any]]:
        """Learn from image files and return a verdict for each, with its key: by default its place in the request."""
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        files = _named(images, keys)
        answer = self.client.ask("POST", f"{self._path}/observe", again=True, files=files, headers=headers)
        return list(answer.json()["verdicts"])

    def score_images(self, images: Sequence[bytes], *, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """A verdict for each image file without learning anything."""
        answer = self.client.ask("POST", f"{self._path}/score", again=True, files=_named(images, keys))
        return list(answer.json()["verdicts"])

    def flow(self, batches: Iterable[Features], *, window: int = 128) -> Iterator[list[dict[str, Any]]]:
        """Observe batches over one connection, and yield the verdicts of each, in order.

        `window` batches are on their way at once: they are learned together, much faster than one request each. A
        connection that breaks is made again; what was not answered is sent again and learned once.
        """
        return Flow(self.client, f"{self._path}/observe", window).verdicts(map(_bytes, batches))

    def info(self) -> dict[str, Any]:
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

    def snapshots(self) -> list[dict[str, Any]]:
        """The snapshots there are, oldest first."""
        return list(self.client.call("GET", f"{self._path}/snapshots")["snapshots"])

    def restore(self, snapshot: int | str | Path) -> None:
        """Go back to a snapshot, or to a state file."""
        path = f"{self._path}/restore"
        if isinstance(snapshot, int):
            self.client.call("POST", path, json={"snapshot": snapshot})
        else:
            self.client.call("POST", path, content=Path(snapshot).read_bytes(), headers=RAW)

    def reset(self) -> None:
        """Forget everything learned."""
        self.client.call("POST", f"{self._path}/reset")

    def delete(self) -> None:
        """Remove the stream."""
        self.client.call("DELETE", self._path)

    def events(self, *, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the verdicts of every observed sample, from now on or `after` the one with that number.

        A broken connection is made again and goes on where it ended. Verdicts that the service no longer keeps are
        yielded as `{"missed": {"first": ..., "last": ...}, "verdicts": []}`. It ends when the service ends it.
        """
        failed = 0
        while failed <= self.client.retries:
            headers = {} if after is None else {"last-event-id": str(after)}
            try:
                with self.client.http.stream("GET", f"{self._path}/events", timeout=None, headers=headers) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise _error(answer)
                    for kind, data in _events(answer.iter_lines()):
                        failed = 0
                        yield data if kind == "verdicts" else {"missed": data, "verdicts": []}
                        after = data["verdicts"][-1]["seq"] if kind == "verdicts" else data["last"]
                return
            except httpx.TransportError:
                failed += 1
                time.sleep(0.1 * 2**failed)


class Flow:
    """A WebSocket on which messages are sent ahead of their answers."""

    def __init__(self, client: Client, path: str, window: int) -> None:
        self.client, self.window, self.session = client, window, uuid.uuid4().hex
        self._url = str(client.http.base_url.join(path)).replace("http", "ws", 1)
        self._sent: deque[bytes] = deque()  # not answered yet
        self._answered = 0

    def verdicts(self, messages: Iterator[bytes]) -> Iterator[list[dict[str, Any]]]:
        """Yield the verdicts of each message in order."""
        from websockets.exceptions import ConnectionClosed, InvalidStatus

        failed = 0
        while True:
            try:
                for verdicts in self._over_one_connection(messages):
                    failed = 0
                    yield verdicts
                return
            except InvalidStatus as error:
                raise _refusal(error.response.status_code, error.response.body) from error
            except (ConnectionClosed, OSError):
                failed += 1
                if failed > self.client.retries:
                    raise
                time.sleep(0.1 * 2**failed)

    def _over_one_connection(self, messages: Iterator[bytes]) -> Iterator[list[dict[str, Any]]]:
        from websockets.sync.client import connect

        key = self.client.http.headers.get("authorization")
        query = f"?session={self.session}&first={self._answered}"
        with connect(self._url + query, additional_headers={"authorization": key} if key else {}) as socket:
            for message in self._sent:
                socket.send(message)
            while self._fill(socket, messages):
                answer = loads(socket.recv())
                self._sent.popleft()
                self._answered += 1
                if "error" in answer:
                    raise ServiceError(422, answer["message"], answer["code"])
                yield answer["verdicts"]

    def _fill(self, socket: Any, messages: Iterator[bytes]) -> bool:
        """Send messages while the window has room; return whether answers are waited for."""
        while len(self._sent) < self.window:
            message = next(messages, None)
            if message is None:
                break
            self._sent.append(message)
            socket.send(message)
        return bool(self._sent)


def example_file(path: Path) -> bytes:
    """Labelled features as the bytes of one file; a folder of `unseen encode` is joined."""
    if not path.is_dir():
        return path.read_bytes()
    found = load_features(path).labelled
    meta = {"classes": dumps(found.classes), "keys": dumps(found.keys), "fingerprint": found.encoder}
    return save({"features": found.z, "labels": found.true_labels}, metadata=meta)


def _events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and content of server-sent events."""
    kind = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, loads(value)


def _named(images: Sequence[bytes], keys: Sequence[str] | None) -> list[tuple[str, tuple[str, bytes]]]:
    names = keys or [str(number) for number in range(len(images))]
    return [("images", (name, data)) for name, data in zip(names, images, strict=True)]


def _bytes(features: Features) -> bytes:
    rows = features.detach().cpu().float().numpy() if isinstance(features, Tensor) else np.asarray(features)
    return rows.astype("<f4").tobytes()


def _error(response: httpx.Response) -> ServiceError:
    return _refusal(response.status_code, response.content)


def _refusal(status: int, body: bytes | bytearray | None) -> ServiceError:
    """The service's error in the words of its answer."""
    try:
        content = loads(body or b"")
        return ServiceError(status, str(content["message"]), str(content.get("code", "")))
    except (ValueError, KeyError, TypeError):
        return ServiceError(status, (body or b"").decode(errors="replace")[:200])
