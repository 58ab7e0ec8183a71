"""Score many streams on Ray: a stream is one task, because what it learns from a sample depends on those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.detectors import Reading
from unseen.keyed import KeyedStream, StreamJob, StreamResult, StreamRunner
from unseen.scale.cluster import fetched
from unseen.threshold import Decisions
from unseen.verdicts import Verdicts

AHEAD = 2  # streams sent out per core: enough to keep it busy, not so many that all features lie in the object store


def on(ray: Any, *, ahead: int = AHEAD) -> StreamRunner:
    """Return what scores streams on Ray and yields each result when it is done.

    A task is pure: it gets a stream and its state and returns both. One whose worker dies is run again and gives the
    same, to the last bit, as on one machine; the states are the driver's to keep.
    """

    def run(
        job: StreamJob, streams: Sequence[KeyedStream], z: Tensor, states: Mapping[str, bytes]
    ) -> Iterator[StreamResult]:
        task, shared = ray.remote(max_retries=5)(_run_stream), ray.put(job)
        limit = max(2, ahead * int(ray.cluster_resources().get("CPU", 1)))
        # the longest first: else the last worker may be left with the longest stream
        waiting = deque(sorted(streams, key=lambda stream: -len(stream.rows)))
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < limit:
                stream = waiting.popleft()
                running.append(task.remote(shared, stream.key, z[stream.rows].numpy(), states.get(stream.key)))
            done, running = ray.wait(running)
            yield from (_result(job.spec.labels.names, *part) for part in fetched(ray, done))

    return run


def _run_stream(job: StreamJob, key: str, z: Any, before: bytes | None) -> Any:
    """Return a result without its names, and with arrays: a tensor would travel as a pickle of its own."""
    result = job.run(key, torch.from_numpy(z.copy()), before)  # copied: what Ray shares is read-only
    columns = (*result.verdicts.reading, *result.verdicts.decisions)
    return key, [column.numpy() for column in columns], result.summary, result.state


def _result(names: tuple[str, ...], key: str, arrays: Any, summary: Any, state: bytes) -> StreamResult:
    columns = [torch.from_numpy(array.copy()) for array in arrays]
    reading, decisions = columns[: len(Reading._fields)], columns[len(Reading._fields) :]
    return StreamResult(key, Verdicts(names, Reading(*reading), Decisions(*decisions)), summary, state)
