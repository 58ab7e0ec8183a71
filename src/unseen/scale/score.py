"""Score many streams on Ray: a stream is one task, because what it learns from a sample depends on those before."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.detectors import Reading
from unseen.keyed import KeyedStream, StreamJob, StreamResult, StreamRunner
from unseen.scale.cluster import task_results
from unseen.threshold import Decisions
from unseen.verdicts import Verdicts

AHEAD = 2  # streams sent out per core


def on_ray(ray: Any, *, ahead: int = AHEAD) -> StreamRunner:
    """Return a runner that scores streams on Ray and yields each result when it is done.

    A task is pure: it gets a stream and its state and returns both. One whose worker dies is run again and gives the
    same, to the last bit, as on one machine; the states are the driver's to keep.
    """

    def run(
        job: StreamJob, streams: Sequence[KeyedStream], z: Tensor, states: Mapping[str, bytes]
    ) -> Iterator[StreamResult]:
        task, shared = ray.remote(max_retries=5)(_run_stream), ray.put(job)

        def submit(stream: KeyedStream) -> Any:
            return task.remote(shared, stream.key, z[stream.rows].numpy(), states.get(stream.key))

        # the longest first: else the last worker may be left with the longest stream
        longest_first = sorted(streams, key=lambda stream: -len(stream.rows))
        for part in task_results(ray, submit, longest_first, ahead=ahead, in_order=False):
            yield _result(job.spec.labels.names, *part)

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
