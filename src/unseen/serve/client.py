"""A small client: the verbs of a stream, retried without learning twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any

import httpx
from torch import Tensor

from unseen.errors import ServiceError

RAW = {"content-type": "application/octet-stream"}
RETRIED = (429, 502, 503, 504, 507)


class Client:
    """A service at `url`.

    with Client("http://127.0.0.1:8000") as service:
        stream = service.create(names=["cat", "dog"])
        for verdict in stream.observe(features):
            print(verdict["verdict"], verdict["name"], verdict["confidence"])
    """

    def __init__(self, url: str, key: str | None = None, *, retries: int = 5, timeout: float = 30) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self.retries = retries

    def create(self, file: str | Path | None = None, **wanted: Any) -> Remote:
        """Create a stream from `names=[...]`, or from a label space file, with the options of POST /v1/streams."""
        if file is None:
            made = self.call("POST", "/v1/streams", json=wanted)
        else:
            upload = {"space": Path(file).read_bytes()}
            made = self.call("POST", "/v1/streams", files=upload, data={"stream": dumps(wanted)})
        return Remote(self, made["id"])

    def stream(self, key: str) -> Remote:
        """Return the stream with an id."""
        return Remote(self, key)

    def streams(self) -> list[dict[str, Any]]:
        """Return what there is."""
        return list(self.call("GET", "/v1/streams")["streams"])

    def call(self, method: str, path: str, **content: Any) -> Any:
        """Return the JSON answer to a request; raise the service's error."""
        return self.ask(method, path, **content).json()

    def ask(self, method: str, path: str, *, again: bool = False, **content: Any) -> httpx.Response:
        """Return the answer to a request, tried a few times when it is harmless to ask `again`."""
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
                    raise ServiceError(response.status_code, _message(response))
            time.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Remote:
    """One stream of a service."""

    def __init__(self, client: Client, key: str) -> None:
        self.client, self.id, self._path = client, key, f"/v1/streams/{key}"

    def observe(self, features: Tensor, *, key: str | None = None) -> list[dict[str, Any]]:
        """Learn from features and return a verdict for each; a retry after a broken connection is not learned twice."""
        headers = {**RAW, "idempotency-key": key or uuid.uuid4().hex}
        answer = self.client.ask("POST", f"{self._path}/observe", again=True, content=_bytes(features), headers=headers)
        return list(answer.json()["verdicts"])

    def score(self, features: Tensor) -> list[dict[str, Any]]:
        """Return a verdict for each without learning anything."""
        path = f"{self._path}/score"
        return list(self.client.ask("POST", path, again=True, content=_bytes(features), headers=RAW).json()["verdicts"])

    def observe_images(
        self, images: Sequence[bytes], *, keys: Sequence[str] | None = None, key: str | None = None
    ) -> list[dict[str, Any]]:
        """Learn from image files and return a verdict for each, with its key: by default its place in the request."""
        names = keys or [str(number) for number in range(len(images))]
        files = [("images", (name, data)) for name, data in zip(names, images, strict=True)]
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        answer = self.client.ask("POST", f"{self._path}/observe", again=True, files=files, headers=headers)
        return list(answer.json()["verdicts"])

    def info(self) -> dict[str, Any]:
        """Return counts, threshold, drift and snapshots."""
        return dict(self.client.call("GET", self._path))

    def state(self, path: str | Path) -> int:
        """Download the state, for `Session.load`, and return how many samples it has seen come by."""
        answer = self.client.ask("GET", f"{self._path}/state", again=True)
        Path(path).write_bytes(answer.content)
        return int(answer.headers["x-unseen-seq"])

    def snapshot(self) -> int:
        """Keep the state as it is and return the snapshot's number."""
        return int(self.client.call("POST", f"{self._path}/snapshots")["snapshot"])

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

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the verdicts of every observed sample from now on."""
        with self.client.http.stream("GET", f"{self._path}/events", timeout=None) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield loads(line[6:])


def _bytes(features: Tensor) -> bytes:
    return features.detach().cpu().float().numpy().astype("<f4").tobytes()


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
